"""Columnar storage of documents: selection, deduplication, division into blocks."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus import encoding

# The maximum size of the token ids in a shard. A reader has one shard in memory, the
# writer two.
MAX_SHARD_BYTES = 2**28

# A document of a segment. A key is stored as two numbers, its halves read as
# big-endian, so that keys are ordered as bytes. The numbers have native byte order,
# because np.concatenate returns that order in any case.
RECORD = np.dtype(
    [
        ("key", "<u8", 2),
        ("copy", "<u4"),  # see `encoding.Entry`
        ("num_sentences", "<u4"),
        ("num_tokens", "<u4"),
    ]
)


class Segment(NamedTuple):
    """The documents of a key range.

    Attributes:
      records: RECORD[n].
      sentence_lengths: uint32, number of tokens of each sentence.
      token_ids: uint16 or uint32, see `encoding.id_dtype`.
    """

    records: np.ndarray
    sentence_lengths: np.ndarray
    token_ids: np.ndarray


def from_entries(entries: list[encoding.Entry], id_dtype: np.dtype) -> Segment:
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
    return Segment(
        records, np.frombuffer(lengths, np.uint32), np.frombuffer(token_ids, id_dtype)
    )


def concatenate(segments: list[Segment]) -> Segment:
    """Concatenates segments, without sorting their documents."""
    return Segment(*map(np.concatenate, zip(*segments, strict=True)))


def key_numbers(records: np.ndarray) -> np.ndarray:
    """Returns `key_ranges.number` of each key, as uint64."""
    return np.ascontiguousarray(records["key"][:, 0])


def distinct(records: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns the indices of one document per key, in order, and the number of repeats.

    The number of repeats does not include further copies of repeated documents, which
    are also dropped.
    """
    high, low = np.ascontiguousarray(records["key"].T)
    order = np.lexsort((low, high))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    num_repeated = np.count_nonzero(records["copy"][order[~is_first]] == 0)
    return order[is_first], int(num_repeated)


def select(segment: Segment, order: np.ndarray) -> Segment:
    """Returns the documents with the indices `order`, in that order."""
    records = segment.records
    sentences = ranges(records["num_sentences"], order)
    tokens = ranges(records["num_tokens"], order)
    return Segment(
        records[order], segment.sentence_lengths[sentences], segment.token_ids[tokens]
    )


def blocks(
    records: np.ndarray, order: np.ndarray, num_tokens: int
) -> Iterator[np.ndarray]:
    """Yields consecutive parts of `order`.

    A part ends with the document that brings it to `num_tokens` tokens or more.
    """
    ends = np.cumsum(records["num_tokens"][order], dtype=np.int64)
    start = done = 0
    while start < len(order):
        stop = int(np.searchsorted(ends, done + num_tokens)) + 1
        yield order[start:stop]
        start, done = stop, int(ends[min(stop, len(order)) - 1])


def ranges(counts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns the indices of the items of documents, which have `counts` items each."""
    ends = np.cumsum(counts, dtype=np.int64)
    lengths = counts[order].astype(np.int64)
    taken = np.cumsum(lengths)
    total = int(taken[-1]) if len(taken) else 0
    return np.repeat(ends[order] - taken, lengths) + np.arange(total)
