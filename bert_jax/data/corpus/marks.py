"""Marks in token ids, for text whose words are segmented.

With config.data.word_segmented, the top bit of a stored id marks an ideograph that
continues the word of the ideograph before it.
"""

import numpy as np


def top_bit(dtype: np.dtype) -> np.integer:
    return dtype.type(1 << (8 * dtype.itemsize - 1))


def split(marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Splits marked ids into ids without the top bit, and bool marks."""
    bit = top_bit(marked.dtype)
    return marked & ~bit, marked >= bit
