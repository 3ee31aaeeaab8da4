"""Divides the files of sources into units, which can be read without the rest.

A unit of Parquet is some row groups, a unit of uncompressed JSON Lines is the lines
that start in a range of bytes, and a unit of any other file is the whole file.
"""

import itertools
from collections.abc import Sequence
from concurrent import futures
from typing import NamedTuple

from bert_jax import storage
from bert_jax.data.sources import input_files, lines, sources
from bert_jax.data.sources.kind import DatasetSource, FileSource, InputFile
from bert_jax.errors import ConfigError

# The size of a unit where the format allows a choice: seconds of work for a process,
# and small enough that the units of one shard keep several processes busy.
MAX_BYTES = 2 * 2**20
# The number of units in a shard if the text is too small for units of MAX_BYTES: enough
# that a shard has text of many places.
PER_SHARD = 16


class Unit(NamedTuple):
    """A part of a file that is read at once."""

    source: int  # index in config.data.sources
    path: str
    part: lines.Part  # row groups or bytes


def plan(found: tuple[input_files.Source, ...], num_shards: int) -> list[Unit]:
    """Divides the files of all sources into units, ordered by source and file."""
    total = input_files.total_bytes(found) or 0
    max_bytes = max(1, min(MAX_BYTES, total // (PER_SHARD * num_shards)))
    kinds = [source.kind for source in found]
    files = [(i, file) for i, source in enumerate(found) for file in source.files]

    def units_of(place: tuple[int, InputFile]) -> list[Unit]:
        number, file = place
        kind = kinds[number]
        assert isinstance(kind, FileSource)
        return [Unit(number, file.path, part) for part in kind.parts(file, max_bytes)]

    with futures.ThreadPoolExecutor(storage.STAT_THREADS) as pool:
        return list(itertools.chain.from_iterable(pool.map(units_of, files)))


def check(specs: Sequence[str]) -> None:
    """Raises ConfigError if a source has no files, which alone can be streamed."""
    for spec in specs:
        if isinstance(sources.parse(spec), DatasetSource):
            raise ConfigError(
                f"config.data.sources has {spec!r}, but config.data.stream=True needs"
                " files, such as parquet:GLOB or jsonl:GLOB#field"
            )
