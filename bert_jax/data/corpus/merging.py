"""External merge sort of runs, before shards are written.

Each shard reads a piece of each run, so there are runs x shards pieces. Above
MAX_PIECES, runs are first merged into larger ones, FAN_IN at a time. A merged run
replaces its inputs: it lists their batches in its header, and the inputs are removed
when it is complete. The result does not depend on the order of runs, and merging can
be interrupted at any time. This module runs in worker processes and must not import
TensorFlow.
"""

import collections
import functools
import hashlib
import math
import os
import re
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np

from bert_jax import storage
from bert_jax.data.corpus import segments, sorted_runs, workers
from bert_jax.monitoring.progress import Progress

# This is about 2 million reads of each column, and 64 MB for the positions.
MAX_PIECES = 2**21
FAN_IN = 256
# The size of the token ids that a merge holds in memory at a time, twice.
SLICE_BYTES = 2**26
# The number of tokens that are ordered at a time; this takes about 24 bytes per token.
BLOCK_TOKENS = 2**20

_MERGED = re.compile(r"merged-(\d+)-[0-9a-f]+")


class Merge(NamedTuple):
    """A task for a worker: the runs to merge, and the level of the result."""

    inputs: tuple[str, ...]
    level: int
    id_dtype: np.dtype


def _names(directory: str) -> set[str]:
    """Returns the file names of all runs."""
    return {
        name
        for name in storage.names(directory)
        if _MERGED.fullmatch(name) or sorted_runs.batch_of(name)
    }


class Finished:
    """The complete runs of a directory.

    Attributes:
      batches: names of the batches in the runs.
    """

    def __init__(self, directory: str, id_dtype: np.dtype):
        """Lists the runs, and removes the inputs left by an interrupted merge."""
        self._directory = directory
        # The batches of each run, by file name.
        self._runs: dict[str, set[str]] = {}
        merged = []
        for name in _names(directory):
            if batch := sorted_runs.batch_of(name):
                self._runs[name] = {batch}
            else:
                run = sorted_runs.Run(os.path.join(directory, name), id_dtype)
                self._runs[name] = set(run.header.batches)
                merged.append(name)
        for name in sorted(merged, key=_level, reverse=True):
            self._remove_inputs_of(name, merged)
        self.batches: set[str] = set().union(*self._runs.values())

    def _remove_inputs_of(self, name: str, merged: list[str]) -> None:
        if name not in self._runs:  # already removed as an input
            return
        held = self._runs[name]
        singles = (sorted_runs.run_path("", batch) for batch in held)
        lower = (other for other in merged if _level(other) < _level(name))
        for other in (*singles, *lower):
            if other in self._runs and self._runs[other] <= held:
                self._remove(other)

    def _remove(self, name: str) -> None:
        storage.remove(os.path.join(self._directory, name))
        del self._runs[name]

    def remove_all_but(self, groups: set[str]) -> None:
        """Removes the runs that contain a batch of any other group."""
        for name, batches in list(self._runs.items()):
            if not all(sorted_runs.group_of(batch) in groups for batch in batches):
                self._remove(name)
        self.batches = set().union(*self._runs.values())

    def has_group(self, group: str) -> bool:
        """Returns whether the runs contain all batches of a group."""
        number = 0
        while (name := sorted_runs.batch_name(group, number)) in self.batches:
            number += 1
        return name + sorted_runs.LAST in self.batches


def max_runs(num_shards: int) -> int:
    """Returns the maximum number of runs from which shards are written."""
    return max(2, MAX_PIECES // num_shards)


def reduce(
    directory: str, num_shards: int, id_dtype: np.dtype, run: workers.Executor
) -> list[str]:
    """Merges the runs of a directory until at most `max_runs` are left.

    Returns:
      The sorted paths of the remaining runs.
    """
    while True:
        names = sorted(_names(directory))
        groups = next_merges({name: _level(name) for name in names}, num_shards)
        if not groups:
            return [os.path.join(directory, name) for name in names]
        tasks = [
            Merge(
                tuple(os.path.join(directory, name) for name in group),
                1 + max(map(_level, group)),
                id_dtype,
            )
            for group in groups
        ]
        with Progress("merging", sum(map(len, groups)), "runs") as progress:
            for inputs in run(functools.partial, (merge,), tasks):
                for path in inputs:
                    storage.remove(path)
                progress.add(len(inputs))


def _level(name: str) -> int:
    match = _MERGED.fullmatch(name)
    return int(match[1]) if match else 0


def next_merges(levels: dict[str, int], num_shards: int) -> list[list[str]]:
    """Returns the groups of runs to merge next; empty if there are few enough runs.

    Only the runs of the lowest level are merged, so that a resumed merge does not
    merge its own results again.

    Args:
      levels: number of successive merges that led to each run, by name.
      num_shards: number of shards to write.
    """
    if len(levels) <= max_runs(num_shards):
        return []
    level = sorted(levels.values())[1]  # the lowest level may have only one run
    low = sorted(name for name in levels if levels[name] <= level)
    parts = np.array_split(low, math.ceil(len(low) / FAN_IN))
    return [part.tolist() for part in parts]


def merge(task: Merge) -> tuple[str, ...]:
    """Merges runs into one, and returns the inputs, which can then be removed."""
    runs = [sorted_runs.Run(path, task.id_dtype) for path in task.inputs]
    records = [run.records() for run in runs]
    everything = np.concatenate(records)
    order, num_repeated = segments.distinct(everything)
    header = _header(runs, everything[order], num_repeated)
    digest = hashlib.sha256("\n".join(sorted(header.batches)).encode()).hexdigest()[:16]
    name = f"merged-{task.level}-{digest}"

    def fill(tmp: str) -> None:
        with storage.open_own(tmp, "xb") as file:
            file.write(header.to_bytes())
            file.write(everything[order].tobytes())
            lengths = file.tell()
            tokens = lengths + 4 * header.num_sentences
            for part in _ordered_parts(_slices(runs, records, task.id_dtype)):
                _write_at(file, lengths, part.sentence_lengths)
                _write_at(file, tokens, part.token_ids)
                lengths += part.sentence_lengths.nbytes
                tokens += part.token_ids.nbytes
            file.flush()
            os.fsync(file.fileno())

    storage.write_with(os.path.join(os.path.dirname(task.inputs[0]), name), fill)
    return task.inputs


def _header(
    runs: list[sorted_runs.Run], records: np.ndarray, num_repeated: int
) -> sorted_runs.Header:
    counts = sum(
        (collections.Counter(run.header.counts) for run in runs), collections.Counter()
    )
    counts["repeated"] += num_repeated
    return sorted_runs.Header(
        len(records),
        int(records["num_sentences"].sum(dtype=np.int64)),
        int(records["num_tokens"].sum(dtype=np.int64)),
        counts,
        {name: n for run in runs for name, n in run.header.batches.items()},
    )


def num_slices(num_tokens: int, id_dtype: np.dtype) -> int:
    """Returns the number of key ranges of a merge, of which one fits in memory."""
    return max(1, math.ceil(num_tokens * id_dtype.itemsize / SLICE_BYTES))


def _slices(
    runs: list[sorted_runs.Run], records: list[np.ndarray], id_dtype: np.dtype
) -> Iterator[segments.Segment]:
    """Yields the documents of all runs, one key range at a time."""
    count = num_slices(sum(run.header.num_tokens for run in runs), id_dtype)
    edges = np.array([2**64 * i // count for i in range(1, count)], np.uint64)
    positions = [sorted_runs.positions(part, edges) for part in records]
    for i in range(count):
        yield segments.concatenate(
            [
                run.read(of_run[i], of_run[i + 1])
                for run, of_run in zip(runs, positions, strict=True)
            ]
        )


def _ordered_parts(slices: Iterator[segments.Segment]) -> Iterator[segments.Segment]:
    for segment in slices:
        order, _ = segments.distinct(segment.records)
        for block in segments.blocks(segment.records, order, BLOCK_TOKENS):
            yield segments.select(segment, block)


def _write_at(file: IO[bytes], offset: int, array: np.ndarray) -> None:
    file.seek(offset)
    file.write(array.tobytes())
