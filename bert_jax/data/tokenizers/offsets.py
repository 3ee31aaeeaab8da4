"""Maps each token of a text to its character offsets."""

import functools
import re

import numpy as np

from bert_jax.data.tokenizers.base import Encoder, Located

# The number of strings in the LRU cache; an entry takes about 700 bytes.
MAX_CACHED = 2**16
MAX_CACHED_CHARS = 64


class LocatingEncoder:
    """Encodes a text to the ids of an encoder and their character offsets.

    The pieces of a string without white space are adjacent, so their lengths determine
    their offsets; a single [UNK] gets the remaining length. If the lengths do not add
    up (a letter was decomposed, or several pieces are [UNK]), each piece has the
    offsets of the whole string.
    """

    def __init__(
        self,
        encode: Encoder,
        strings: re.Pattern[str],
        num_characters: np.ndarray,
        unk: int,
    ):
        """Initializes the encoder.

        Args:
          strings: matches the strings of a text that are tokenized separately. Their
            ids, concatenated, are those of the text.
          num_characters: int32, the number of characters that each piece represents.
        """
        self._encode, self._strings = encode, strings
        self._num_characters, self._unk = num_characters, unk
        self._cached = functools.lru_cache(MAX_CACHED)(self._locate)

    def __call__(self, text: str) -> Located:
        spans = [match.span() for match in self._strings.finditer(text)]
        strings = [self._locate_cached(text[start:end]) for start, end in spans]
        if not strings:
            nothing = np.empty(0, np.int32)
            return Located(nothing, nothing, nothing)
        sizes = [len(string.ids) for string in strings]
        first = np.repeat(np.array([start for start, _ in spans], np.int32), sizes)
        return Located(
            np.concatenate([string.ids for string in strings]),
            np.concatenate([string.starts for string in strings]) + first,
            np.concatenate([string.ends for string in strings]) + first,
        )

    def _locate_cached(self, string: str) -> Located:
        is_short = len(string) <= MAX_CACHED_CHARS
        return self._cached(string) if is_short else self._locate(string)

    def _locate(self, string: str) -> Located:
        (ids,) = self._encode([string])
        lengths = self._num_characters[ids]
        is_unknown = ids == self._unk
        if is_unknown.sum() == 1:
            lengths = np.where(is_unknown, 0, lengths)
            lengths[is_unknown] = len(string) - lengths.sum()
        if lengths.sum() == len(string) and (lengths[is_unknown] > 0).all():
            ends = np.cumsum(lengths, dtype=np.int32)
            return Located(ids, ends - lengths, ends)
        return Located(ids, np.zeros_like(ids), np.full_like(ids, len(string)))
