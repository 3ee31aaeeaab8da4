"""Assignment of documents to shards: each shard is a range of document keys.

A key is 16 bytes, ordered as bytes. Its first 8 bytes are a uniformly distributed
number, so ranges of equal width have about the same number of documents. Documents
with a number below `held_out_end` are held out; the others belong to training shards.
Documents sorted by key can therefore be split into any number of shards without
sorting again.
"""

import math
from typing import NamedTuple

import numpy as np

from bert_jax.config import DataConfig

# The approximate size of the token ids in a shard of held-out documents.
VALIDATION_BYTES = 2**27

_END = 2**64


def number(key: bytes) -> int:
    """Returns the number that determines the shard of a key."""
    return int.from_bytes(key[:8], "big")


def held_out_end(data: DataConfig) -> int:
    """Returns the number below which documents are held out."""
    return math.ceil(data.validation_fraction * _END)


def training_key(digest: bytes, data: DataConfig) -> bytes:
    """Returns the key of a further copy of a document, which is never held out."""
    end = held_out_end(data)
    moved = end + (number(digest) * (_END - end) >> 64)
    return moved.to_bytes(8, "big") + digest[8:]


def num_validation_shards(data: DataConfig, num_tokens: int, id_dtype: np.dtype) -> int:
    """Returns the number of shards of held-out documents.

    Args:
      num_tokens: number of tokens of all documents, each counted once.
    """
    if not data.validation_fraction:
        return 0
    num_bytes = data.validation_fraction * num_tokens * id_dtype.itemsize
    return max(1, math.ceil(num_bytes / VALIDATION_BYTES))


class KeyRanges(NamedTuple):
    """The key ranges of all shards, validation shards first.

    Attributes:
      files: file names of the shards, in the order of their ranges.
      inner_edges: uint64, the first number of every range except the first.
    """

    files: list[str]
    inner_edges: np.ndarray


def ranges(data: DataConfig, num_validation: int) -> KeyRanges:
    """Returns ranges of equal width for the validation and for the training shards."""
    end, num_train = held_out_end(data), data.num_shards
    starts = [end * i // num_validation for i in range(num_validation)]
    starts += [end + (_END - end) * i // num_train for i in range(num_train)]
    files = _names("validation", num_validation) + _names("train", num_train)
    return KeyRanges(files, np.array(starts[1:], np.uint64))


def _names(split: str, count: int) -> list[str]:
    return [f"{split}-{i:05d}-of-{count:05d}" for i in range(count)]
