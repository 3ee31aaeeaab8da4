"""Between documents and shards: batches of documents, each encoded to a sorted run.

A run file begins with a table, int64[num_shards + 1, 4], that tells for each shard
where its segment begins and how many documents, sentences and tokens it has. A segment
holds keys (16 bytes each), copy numbers (uint32), document lengths (uint32, sentences),
sentence lengths (uint32, tokens) and token ids, ordered by key. Beside every run stands
a JSON file of what was counted on the way; it is written last and so says that the run
is complete. Runs in worker processes: no TensorFlow.
"""

import collections
import json
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bert_jax import storage
from bert_jax.config import DataConfig
from bert_jax.data import encoding, sources, tokenizers


class Batch(NamedTuple):
    """Neighbouring documents of one source."""

    number: int
    source: int
    num_bytes: int
    documents: list[sources.Document]


class Segment(NamedTuple):
    """The documents of one shard, by key, as columns."""

    keys: np.ndarray  # uint64[n, 2]
    copies: np.ndarray  # uint32[n]
    document_lengths: np.ndarray  # uint32[n], sentences
    sentence_lengths: np.ndarray  # uint32, tokens
    token_ids: np.ndarray  # uint16 or uint32, see `encoding.id_dtype`


def batches(
    documents: Iterable[tuple[int, sources.Document]], max_bytes: int
) -> Iterator[Batch]:
    """Yields (source, document) pairs in batches of max_bytes and the last document.

    Where a batch ends depends on the documents only, so a number means the same batch
    when reading starts again.
    """
    batch = Batch(0, 0, 0, [])
    for source, document in documents:
        if batch.documents and source != batch.source:
            yield batch
            batch = Batch(batch.number + 1, source, 0, [])
        batch.documents.append(document)
        num_bytes = batch.num_bytes + document.num_bytes
        batch = Batch(batch.number, source, num_bytes, batch.documents)
        if num_bytes >= max_bytes:
            yield batch
            batch = Batch(batch.number + 1, source, 0, [])
    if batch.documents:
        yield batch


class RunWriter:
    """Encodes batches into run files of one directory."""

    def __init__(
        self, directory: str, data: DataConfig, tokenizer: tokenizers.Tokenizer
    ):
        self._directory = directory
        self._num_segments = encoding.validation_shard(data) + 1
        self._id_dtype = encoding.id_dtype(tokenizer, data)
        self._encoder = encoding.DocumentEncoder(data, tokenizer)

    def write(self, batch: Batch) -> int:
        """Writes the run of a batch and returns the batch's bytes of text."""
        counts: collections.Counter[str] = collections.Counter()
        by_shard: dict[int, list[encoding.Entry]] = collections.defaultdict(list)
        for document in batch.documents:
            for shard, entry in self._encoder(document, batch.source, counts):
                by_shard[shard].append(entry)
        table = np.zeros((self._num_segments, 4), np.int64)
        segments, offset = [], table.nbytes
        for shard, entries in by_shard.items():
            segments.append(_pack(entries))
            num_sentences = sum(len(entry.sentence_lengths) for entry in entries) // 4
            num_id_bytes = sum(len(entry.token_ids) for entry in entries)
            num_tokens = num_id_bytes // self._id_dtype.itemsize
            table[shard] = (offset, len(entries), num_sentences, num_tokens)
            offset += len(segments[-1])
        path = run_path(self._directory, batch.number)
        storage.write(path, table.tobytes() + b"".join(segments))
        storage.write(path + ".json", json.dumps(counts).encode())
        return batch.num_bytes


def run_path(directory: str, number: int) -> str:
    return os.path.join(directory, f"run-{number:06d}")


def finished(directory: str) -> dict[str, dict[str, int]]:
    """Returns the paths of the complete runs, each with what was counted."""
    found = {}
    for name in os.listdir(directory):
        if name.startswith("run-") and name.endswith(".json"):
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                found[path.removesuffix(".json")] = json.load(file)
    return found


def read_segment(path: str, shard: int, id_dtype: np.dtype) -> Segment:
    """Returns what a run holds for a shard, which may be nothing."""
    with open(path, "rb") as file:
        file.seek(shard * 4 * 8)  # a row of the table
        row = np.frombuffer(file.read(4 * 8), np.int64)
        offset, num_documents, num_sentences, num_tokens = row.tolist()
        file.seek(offset)
        num_bytes = 24 * num_documents + 4 * num_sentences
        data = file.read(num_bytes + num_tokens * id_dtype.itemsize)
    return _unpack(data, num_documents, num_sentences, id_dtype)


def to_segment(entries: list[encoding.Entry], id_dtype: np.dtype) -> Segment:
    """Returns the documents of one shard as columns."""
    num_sentences = sum(len(entry.sentence_lengths) // 4 for entry in entries)
    return _unpack(_pack(entries), len(entries), num_sentences, id_dtype)


def _pack(entries: list[encoding.Entry]) -> bytes:
    entries = sorted(entries)
    copies = np.array([entry.copy for entry in entries], np.uint32)
    lengths = np.array([len(e.sentence_lengths) // 4 for e in entries], np.uint32)
    return b"".join(
        (
            *(entry.key for entry in entries),
            copies.tobytes(),
            lengths.tobytes(),
            *(entry.sentence_lengths for entry in entries),
            *(entry.token_ids for entry in entries),
        )
    )


def _unpack(
    data: bytes, num_documents: int, num_sentences: int, id_dtype: np.dtype
) -> Segment:
    n, m = num_documents, num_sentences
    # Big-endian, so that numbers are ordered as the bytes are.
    keys = np.frombuffer(data, ">u8", 2 * n).astype(np.uint64).reshape(n, 2)
    return Segment(
        keys,
        np.frombuffer(data, np.uint32, n, 16 * n),
        np.frombuffer(data, np.uint32, n, 20 * n),
        np.frombuffer(data, np.uint32, m, 24 * n),
        np.frombuffer(data, id_dtype, offset=24 * n + 4 * m),
    )


# The state of a worker process; `start` is called once in each.
_writer: RunWriter | None = None


def start(directory: str, data: DataConfig, tokenizer: tokenizers.Tokenizer) -> None:
    global _writer
    _writer = RunWriter(directory, data, tokenizer)


def write(batch: Batch) -> int:
    """Writes the run of a batch, in a process that was started."""
    assert _writer is not None
    return _writer.write(batch)
