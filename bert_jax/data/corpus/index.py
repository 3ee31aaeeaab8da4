"""Indexes text that is streamed: counts the rows of its shards, once for all runs.

The index is a corpus directory without the files of the training shards; its manifest
lists their units and a digest of their token ids instead. The held-out documents, which
are few, are written like those of a prepared corpus.
"""

import dataclasses
import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax import storage
from bert_jax.config import DataConfig
from bert_jax.data.batches import pairs
from bert_jax.data.corpus import (
    encoding,
    input_groups,
    keyed,
    sorted_runs,
    streamed,
    workers,
    writer,
)
from bert_jax.data.corpus.streamed import Unit
from bert_jax.data.sources import lines, sources
from bert_jax.data.sources.kind import DatasetSource, InputFile, Source
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError
from bert_jax.monitoring.progress import Progress

# The size of a unit where the format allows a choice: seconds of work for a process,
# and small enough that the units of one shard keep several processes busy.
MAX_BYTES = 2 * 2**20
# The number of units in a shard if the text is too small for units of MAX_BYTES: enough
# that a shard has text of many places.
PER_SHARD = 16


class Task(NamedTuple):
    """A task for a worker: to index one training shard."""

    file: str  # file name of the shard in the manifest
    name: str  # identifies the units, and the settings that concern their sources only
    units: list[Unit]


def check(specs: Sequence[str]) -> None:
    """Raises ConfigError if a source has no files, which alone can be streamed."""
    for spec in specs:
        if isinstance(sources.parse(spec), DatasetSource):
            raise ConfigError(
                f"config.data.sources has {spec!r}, but config.data.stream=True needs"
                " files, such as parquet:GLOB or jsonl:GLOB#field"
            )


def make(
    inputs: tuple[Source, ...],
    data: DataConfig,
    tokenizer: tokenizers.Tokenizer,
    directory: str,
    run: workers.Executor,
) -> tuple[sorted_runs.ShardPlan, dict[str, writer.WrittenShard], dict[str, Any]]:
    """Reads and encodes all text, except for shards that a killed call has finished.

    Returns a plan of the validation shards, whose one training shard is empty; the
    training shards by file name; and their files and units.
    """
    tasks = _tasks(inputs, data)
    finished = sorted_runs.remove_all_but({task.name for task in tasks}, directory)
    missing = [task for task in tasks if task.name not in finished]
    all_counts: list[lines.ReadCounts] = []
    with Progress("indexing", len(tasks), "shards") as progress:
        progress.add(len(tasks) - len(missing), found_done=True)
        for counts in run(ShardIndexer, (directory, data, tokenizer), missing):
            all_counts += counts
            progress.add(1)
    input_groups.raise_bad(all_counts)
    id_dtype = encoding.id_dtype(tokenizer, data)
    one_shard = dataclasses.replace(data, num_shards=1)
    held_out = sorted_runs.plan_shards(directory, one_shard, id_dtype)
    train = {}
    for task in tasks:
        written = writer.read_written(f"{directory}/{task.name}.json")
        if written.shard:  # a call with another number of shards may have written it
            shard = dataclasses.replace(written.shard, file=task.file)
            written = dataclasses.replace(written, shard=shard)
        train[task.file] = written
    files = [[i, *file[:2]] for i, source in enumerate(inputs) for file in source.files]
    number = {(source, path): i for i, (source, path, _) in enumerate(files)}
    units = {
        task.file: [[number[unit[:2]], *unit.part] for unit in task.units]
        for task in tasks
    }
    return held_out, train, {"files": files, "units": units}


def _tasks(inputs: tuple[Source, ...], data: DataConfig) -> list[Task]:
    """Assigns units to shards at random, so that a shard has text of many files."""
    planned = plan_units(inputs, data.num_shards)
    if len(planned) < data.num_shards:
        raise ConfigError(
            f"config.data.num_shards={data.num_shards}, but config.data.sources have"
            f" {len(planned)} part(s) that can be streamed separately (row groups of"
            " Parquet, ranges of uncompressed JSON Lines, other files as a whole); set"
            f" config.data.num_shards to {len(planned)} or less, or write more, smaller"
            " files or row groups"
        )
    order = pairs.CounterRandom(len(planned)).order(len(planned))
    files = keyed.key_ranges(data, 0).files
    # With the modification time, so that results for an older file are not reused.
    stats = {(i, file.path): file[:3] for i, s in enumerate(inputs) for file in s.files}
    tasks = []
    for i, file in enumerate(files):
        own = [planned[number] for number in np.sort(order[i :: len(files)])]
        facts = [
            [
                unit.source,
                *stats[unit[:2]],
                unit.part,
                inputs[unit.source].kind.format,
                data.source_weights[unit.source] if data.source_weights else 1.0,
            ]
            for unit in own
        ]
        text = json.dumps([facts, data.validation_fraction])
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        tasks.append(Task(file, name, own))
    return tasks


def plan_units(inputs: tuple[Source, ...], num_shards: int) -> list[Unit]:
    """Divides the files of all sources into units, ordered by source and file."""
    total = sources.total_bytes(inputs) or 0
    max_bytes = max(1, min(MAX_BYTES, total // (PER_SHARD * num_shards)))

    def units_of(source: int, kind: Any, file: InputFile) -> list[Unit]:
        return [Unit(source, file.path, part) for part in kind.parts(file, max_bytes)]

    files = [(i, x.kind, file) for i, x in enumerate(inputs) for file in x.files]
    units = storage.in_threads(units_of, *zip(*files, strict=True))
    return list(itertools.chain.from_iterable(units))


# ------------------------------------------------------------------ worker processes


class ShardIndexer:
    def __init__(
        self, directory: str, data: DataConfig, tokenizer: tokenizers.Tokenizer
    ):
        self._directory, self._data = directory, data
        self._encode = streamed.UnitEncoder(data, tokenizer)

    def __call__(self, task: Task) -> list[lines.ReadCounts]:
        """Indexes a shard, and returns the counts of its units.

        Writes its entry in the manifest, then its held-out documents as a run, which
        marks the shard as finished; nothing if lines cannot be read.
        """
        pieces, all_counts, num_bytes = [], [], 0
        for unit in task.units:
            documents, counts = self._encode(unit)
            pieces.append(documents)
            all_counts.append(counts)
            num_bytes += documents.token_ids.nbytes
            if num_bytes > keyed.MAX_SHARD_BYTES:
                path = os.path.join(self._data.corpus_dir, task.file)
                writer.check_size(path, num_bytes * len(task.units) // len(pieces))
        if any(counts.num_bad for counts in all_counts):
            return all_counts
        train, held_out, num_repeated = streamed.arrange(pieces, self._data)
        written = writer.WrittenShard(None, [], num_repeated, 0)
        if len(train.records):
            written = writer.describe(
                task.file,
                train.records,
                train.sentence_lengths,
                num_repeated,
                num_bytes=train.token_ids.nbytes,
                sha256=streamed.digest(train),
            )
        written.write(f"{self._directory}/{task.name}.json")
        counts = sum(map(Counter, all_counts), Counter())
        sorted_runs.save(self._directory, task.name, held_out, counts)
        return all_counts
