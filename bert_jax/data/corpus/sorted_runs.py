"""Runs: files of encoded documents ordered by key, from which shards are written.

A run does not depend on the number of shards. The file contains the length of its
header (uint64), the header (JSON, see `save`), and three columns: a `keyed.RECORD`
for each document, sentence lengths (uint32) and token ids. A range of keys is therefore
three contiguous reads. Each shard reads a piece of each run. This module runs in worker
processes and must not import TensorFlow.

Shapes: N document of a run, R range of keys, C column of `positions`.
"""

import collections
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bert_jax import storage
from bert_jax.config import DataConfig
from bert_jax.data.batches import pairs
from bert_jax.data.corpus import encoding, keyed
from bert_jax.data.sources.kind import Document
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError

# The suffix of the name of the last batch of a group.
LAST = "-last"
_PREFIX = "run-"
_LENGTHS = ("num_documents", "num_sentences", "num_tokens")  # of the columns


class Batch(NamedTuple):
    """Consecutive documents of one group of input files."""

    name: str
    source: int  # index in config.data.sources
    num_bytes: int  # size of the text
    documents: list[Document]
    counts: dict[str, int]  # from reading the group, in its last batch; else {}


def batches(
    group: str,
    source: int,
    documents: Iterable[Document],
    counts: dict[str, int],
    max_bytes: int,
) -> Iterator[Batch]:
    """Divides the documents of a group into batches.

    Batches depend on the documents only, so a batch has the same name when the group is
    read again. The name of the last batch, which may be empty, ends in LAST: a group is
    complete if all batches up to that one exist. A batch ends with the document that
    brings its text to max_bytes. Reading the documents fills `counts`.
    """
    number, held, num_bytes = 0, [], 0
    for document in documents:
        if num_bytes >= max_bytes:
            yield Batch(batch_name(group, number), source, num_bytes, held, {})
            number, held, num_bytes = number + 1, [], 0
        held.append(document)
        num_bytes += document.num_bytes
    name = batch_name(group, number) + LAST
    yield Batch(name, source, num_bytes, held, dict(counts))


def batch_name(group: str, number: int) -> str:
    return f"{group}-{number:06d}"


def group_of(batch: str) -> str:
    return batch.partition("-")[0]


class RunFile:
    """Reads a run file, which is open only during reads."""

    def __init__(self, path: str, id_dtype: np.dtype):
        self.path = path
        self._dtypes = keyed.RECORD, np.dtype(np.uint32), id_dtype
        num_bytes = storage.stat(path).num_bytes
        try:
            (size,) = storage.read_ranges(path, [(0, 8)])
            length = min(int(np.frombuffer(size, np.uint64)[0]), num_bytes)
            (header,) = storage.read_ranges(path, [(8, 8 + length)])
            self.header = json.loads(header)
            sizes = (
                self.header[name] * dtype.itemsize
                for name, dtype in zip(_LENGTHS, self._dtypes, strict=True)
            )
            # Offsets of the columns, in bytes.
            *self._offsets, end = itertools.accumulate(sizes, initial=8 + length)
        except ConfigError:
            raise
        except (EOFError, ValueError, KeyError, TypeError):
            end = None
        if end != num_bytes:  # after a power failure
            raise CorruptError(f"{path} is corrupt; remove it, and rerun this command")

    def records(self) -> np.ndarray:
        start, stop, _ = self._offsets
        (data,) = storage.read_ranges(self.path, [(start, stop)])
        return np.frombuffer(data, keyed.RECORD)

    def read(self, start_C: np.ndarray, stop_C: np.ndarray) -> keyed.Documents:
        """Returns the documents between two rows of `positions`."""
        sizes = [dtype.itemsize for dtype in self._dtypes]
        starts = self._offsets + start_C[:3] * sizes
        stops = self._offsets + stop_C[:3] * sizes
        bounds = list(zip(starts.tolist(), stops.tolist(), strict=True))
        columns = storage.read_ranges(self.path, bounds)
        return keyed.Documents(*map(np.frombuffer, columns, self._dtypes))


def positions(records_N: np.ndarray, inner_edges_R: np.ndarray) -> np.ndarray:
    """Returns the positions of R key ranges in the columns of a run.

    `inner_edges_R` is uint64[R - 1], see `keyed.KeyRanges`. The result is
    int64[R + 1, 4], the numbers of documents, sentences, tokens and further copies
    before each range; the last row has those of the whole run.
    """
    inner = np.searchsorted(records_N["key"][:, 0], inner_edges_R)
    rows = np.concatenate([[0], inner, [len(records_N)]])
    counts = records_N["num_sentences"], records_N["num_tokens"], records_N["copy"] > 0
    return np.stack([rows, *(pairs.offsets(each)[rows] for each in counts)], axis=1)


class RunWriter:
    """Encodes batches into run files of one directory."""

    def __init__(
        self, directory: str, data: DataConfig, tokenizer: tokenizers.Tokenizer
    ):
        self._directory = directory
        self._encoder = encoding.DocumentEncoder(data, tokenizer)

    def __call__(self, batch: Batch) -> int:
        """Writes the run of a batch, and returns the size of its text in bytes."""
        counts = collections.Counter(batch.counts)
        entries = [
            entry
            for document in batch.documents
            for entry in self._encoder(document, batch.source, counts)
        ]
        documents = keyed.from_entries(entries, self._encoder.dtype)
        order, num_repeated = keyed.distinct(documents.records)
        if len(order) < len(entries):
            documents = documents.select(order)
        counts["repeated"] += num_repeated
        save(self._directory, batch.name, documents, counts)
        return batch.num_bytes


def save(
    directory: str, batch: str, documents: keyed.Documents, counts: dict[str, int]
) -> None:
    """Writes the run of a batch: documents ordered by key, without repeats."""
    header = dict(zip(_LENGTHS, map(len, documents), strict=True)) | {"counts": counts}
    text = json.dumps(header).encode()
    columns = [column.tobytes() for column in documents]
    data = b"".join([np.uint64(len(text)).tobytes(), text, *columns])
    storage.write(run_path(directory, batch), data)


def run_path(directory: str, batch: str) -> str:
    return os.path.join(directory, _PREFIX + batch)


def finished(directory: str) -> set[str]:
    """Returns the names of the batches whose runs are complete."""
    return {
        name.removeprefix(_PREFIX)
        for name in storage.names(directory)
        if name.startswith(_PREFIX) and not storage.is_temporary(name)
    }


def remove_all_but(groups: set[str], directory: str) -> set[str]:
    """Removes the runs of other groups; returns the names of the batches left."""
    batches = finished(directory)
    others = {batch for batch in batches if group_of(batch) not in groups}
    for batch in others:
        storage.remove(run_path(directory, batch))
    return batches - others


def has_group(batches: set[str], group: str) -> bool:
    number = 0
    while (name := batch_name(group, number)) in batches:
        number += 1
    return name + LAST in batches


class ShardPlan(NamedTuple):
    """The shards of a corpus and the positions of their documents in the runs."""

    files: list[str]  # file names of the shards
    runs: list[RunFile]
    # int64[runs, shards + 1, 4], see `positions`. A document that is in several runs
    # counts once per run.
    positions: np.ndarray
    counts: collections.Counter[str]  # of all runs
    batches: list[str]  # their names


def plan_shards(directory: str, data: DataConfig, id_dtype: np.dtype) -> ShardPlan:
    """Reads the keys of all runs and assigns the documents to shards."""
    names = sorted(finished(directory))
    runs = storage.in_threads(
        lambda name: RunFile(run_path(directory, name), id_dtype), names
    )
    counts: collections.Counter[str] = collections.Counter()
    for run in runs:
        counts.update(run.header["counts"])
    num_tokens = encoding.num_tokens(counts)
    num_validation = keyed.num_validation_shards(data, num_tokens, id_dtype)
    files, edges = keyed.key_ranges(data, num_validation)
    bounds = np.empty((len(runs), len(files) + 1, 4), np.int64)  # 1 GB for 1 TB of text

    def fill(i: int) -> None:
        bounds[i] = positions(runs[i].records(), edges)

    storage.in_threads(fill, range(len(runs)), num_threads=storage.TRANSFER_THREADS)
    return ShardPlan(files, runs, bounds, counts, names)
