"""Which shard a document belongs to: each shard is a range of document keys.

A key is 16 bytes, ordered as bytes. Its first 8 bytes are a number that is uniform over
its range, so ranges of equal width hold about equally many documents. Keys below
`held_out_end` are held out; the rest belong to training shards. Documents that are
sorted by key can therefore be dealt to any number of shards without another sort.
"""

import bisect
import math

import numpy as np

from bert_jax.config import DataConfig

# Held-out documents are split into shards of about this size, of token ids.
VALIDATION_BYTES = 2**27

_END = 2**64


def number(key: bytes) -> int:
    """Returns the number that decides to which shard a key belongs."""
    return int.from_bytes(key[:8], "big")


def held_out_end(data: DataConfig) -> int:
    """Returns the number below which a key is held out."""
    return math.ceil(data.validation_fraction * _END)


def training_key(digest: bytes, data: DataConfig) -> bytes:
    """Returns the key of a further copy of a document, which is never held out."""
    end = held_out_end(data)
    moved = end + (number(digest) * (_END - end) >> 64)
    return moved.to_bytes(8, "big") + digest[8:]


def num_validation_shards(data: DataConfig, num_tokens: int, id_dtype: np.dtype) -> int:
    """Returns how many shards the held-out documents are split into.

    Args:
      data: its validation_fraction.
      num_tokens: of all documents, each counted once.
      id_dtype: of the token ids.
    """
    if not data.validation_fraction:
        return 0
    num_bytes = data.validation_fraction * num_tokens * id_dtype.itemsize
    return max(1, math.ceil(num_bytes / VALIDATION_BYTES))


class KeyRanges:
    """The key ranges of all shards: validation shards, then training shards.

    Attributes:
      files: names of the shards, in order of their ranges.
    """

    def __init__(self, data: DataConfig, num_validation: int):
        end, num_train = held_out_end(data), data.num_shards
        held_out = [end * i // num_validation for i in range(num_validation)]
        train = [end + (_END - end) * i // num_train for i in range(num_train)]
        self._starts = held_out + train
        self.files = [
            *_names("validation", num_validation),
            *_names("train", num_train),
        ]

    def __len__(self) -> int:
        return len(self.files)

    def index(self, key: bytes) -> int:
        """Returns the index of the shard that a key belongs to."""
        return bisect.bisect_right(self._starts, number(key)) - 1

    @property
    def inner_edges(self) -> np.ndarray:
        """Returns the first number of every range but the first, as uint64."""
        return np.array(self._starts[1:], np.uint64)


def _names(split: str, count: int) -> list[str]:
    return [f"{split}-{i:05d}-of-{count:05d}" for i in range(count)]
