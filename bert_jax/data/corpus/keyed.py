"""Encoded documents in columns, ordered by key; the key ranges of shards.

A key is 16 bytes, ordered as bytes. Its first 8 bytes are a uniformly distributed
number, so ranges of equal width have about the same number of documents. Documents
with a number below `held_out_end` are held out; the others belong to training shards.
Documents sorted by key can therefore be split into any number of shards without
sorting again.

Shapes: N document, M selected document.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data.batches import pairs

# The approximate size of the token ids in a shard of held-out documents.
VALIDATION_BYTES = 2**27
# The maximum size of the token ids in a shard. A reader has one shard in memory, the
# writer two.
MAX_SHARD_BYTES = 2**28

# A document. A key is stored as two numbers, its halves read as
# big-endian, so that keys are ordered as bytes. The numbers have native byte order,
# because np.concatenate returns that order in any case.
RECORD = np.dtype(
    [
        ("key", "<u8", 2),
        ("copy", "<u4"),  # see `Entry`
        ("num_sentences", "<u4"),
        ("num_tokens", "<u4"),
    ]
)

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
    """Returns the number of shards of held-out documents, of which each counts once."""
    if not data.validation_fraction:
        return 0
    num_bytes = data.validation_fraction * num_tokens * id_dtype.itemsize
    return max(1, math.ceil(num_bytes / VALIDATION_BYTES))


class KeyRanges(NamedTuple):
    """The key ranges of all shards, validation shards first."""

    files: list[str]  # file names of the shards, in the order of their ranges
    inner_edges: np.ndarray  # uint64, the first number of every range but the first


def key_ranges(data: DataConfig, num_validation: int) -> KeyRanges:
    """Returns ranges of equal width for the validation and for the training shards."""
    end, num_train = held_out_end(data), data.num_shards
    starts = [end * i // num_validation for i in range(num_validation)]
    starts += [end + (_END - end) * i // num_train for i in range(num_train)]
    files = [
        f"{split}-{i:05d}-of-{count:05d}"
        for split, count in (("validation", num_validation), ("train", num_train))
        for i in range(count)
    ]
    return KeyRanges(files, np.array(starts[1:], np.uint64))


class Entry(NamedTuple):
    """An encoded document, or a further copy of one."""

    key: bytes  # 16 bytes; equal documents have equal keys
    copy: int  # 0 for the document, 1, 2, ... for its further copies
    sentence_lengths: bytes  # uint32, number of tokens of each sentence
    token_ids: bytes  # uint16 or uint32, see `encoding.id_dtype`


class Documents(NamedTuple):
    """The documents of a key range."""

    records: np.ndarray  # RECORD[n]
    sentence_lengths: np.ndarray  # uint32, number of tokens of each sentence
    token_ids: np.ndarray  # uint16 or uint32, see `encoding.id_dtype`

    def select(self, order_M: np.ndarray) -> "Documents":
        """Returns the documents with the indices `order_M`, in that order."""
        sentences = ranges(self.records["num_sentences"], order_M)
        tokens = ranges(self.records["num_tokens"], order_M)
        return Documents(
            self.records[order_M],
            self.sentence_lengths[sentences],
            self.token_ids[tokens],
        )


def from_entries(entries: list[Entry], id_dtype: np.dtype) -> Documents:
    """Converts entries to columns, ordered by key."""
    entries = sorted(entries)
    records = np.zeros(len(entries), RECORD)
    keys = b"".join(entry.key for entry in entries)
    records["key"] = np.frombuffer(keys, ">u8").reshape(-1, 2)
    records["copy"] = [entry.copy for entry in entries]
    records["num_sentences"] = [len(e.sentence_lengths) // 4 for e in entries]
    records["num_tokens"] = [len(e.token_ids) // id_dtype.itemsize for e in entries]
    lengths = b"".join(entry.sentence_lengths for entry in entries)
    token_ids = b"".join(entry.token_ids for entry in entries)
    return Documents(
        records, np.frombuffer(lengths, np.uint32), np.frombuffer(token_ids, id_dtype)
    )


def concatenate(pieces: list[Documents]) -> Documents:
    """Concatenates documents, without sorting them."""
    return Documents(*map(np.concatenate, zip(*pieces, strict=True)))


def distinct(records_N: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns the indices of one document per key, in order, and the number of repeats.

    It does not include further copies of repeated documents, which are also dropped.
    """
    high, low = np.ascontiguousarray(records_N["key"].T)
    order = np.lexsort((low, high))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    num_repeated = np.count_nonzero(records_N["copy"][order[~is_first]] == 0)
    return order[is_first], int(num_repeated)


def blocks(
    records_N: np.ndarray, order_M: np.ndarray, num_tokens: int
) -> Iterator[np.ndarray]:
    """Yields consecutive parts of `order_M`.

    A part ends with the document that brings it to `num_tokens` tokens or more.
    """
    ends = np.cumsum(records_N["num_tokens"][order_M], dtype=np.int64)
    start = done = 0
    while start < len(order_M):
        stop = int(np.searchsorted(ends, done + num_tokens)) + 1
        yield order_M[start:stop]
        start, done = stop, int(ends[min(stop, len(order_M)) - 1])


def ranges(counts_N: np.ndarray, order_M: np.ndarray) -> np.ndarray:
    """Returns the indices of the items of documents, which have counts_N items each."""
    lengths = counts_N[order_M].astype(np.int64)
    starts = np.cumsum(counts_N, dtype=np.int64)[order_M] - lengths
    return pairs.slice_indices(starts, lengths)
