"""Divides the files of sources into units, which can be read without the rest.

A unit of Parquet is some row groups, a unit of uncompressed JSON Lines is the lines
that start in a range of bytes, and a unit of any other file is the whole file.
"""

from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import NamedTuple

from bert_jax import storage
from bert_jax.data.sources import formats, input_files, lines, parquet

# The size of a unit where the format allows a choice: seconds of work for a process,
# and small enough that the units of one shard keep several processes busy.
MAX_BYTES = 2 * 2**20
# The number of units in a shard if the text is too small for units of MAX_BYTES: enough
# that a shard has text of many places.
PER_SHARD = 16


class Unit(NamedTuple):
    """A part of a file that is read at once.

    Attributes:
      source: index of the source in config.data.sources.
      path: path of the file.
      part: row groups or bytes; see `lines.Part`.
    """

    source: int
    path: str
    part: lines.Part


def plan(found: tuple[input_files.Source, ...], num_shards: int) -> list[Unit]:
    """Divides the files of all sources into units, ordered by source and file.

    Args:
      found: sources with files.
      num_shards: the number of shards to which the units will be assigned.

    Raises:
      ConfigError: when a Parquet file is corrupt or has no such column.
    """
    total = input_files.total_bytes(found) or 0
    max_bytes = max(1, min(MAX_BYTES, total // (PER_SHARD * num_shards)))
    files = [
        (i, source, file) for i, source in enumerate(found) for file in source.files
    ]
    with futures.ThreadPoolExecutor(storage.STAT_THREADS) as pool:
        parts = pool.map(lambda x: list(_parts(x[1], x[2], max_bytes)), files)
        return [
            Unit(i, file.path, part)
            for (i, _, file), of_file in zip(files, parts, strict=True)
            for part in of_file
        ]


def _parts(
    source: input_files.Source, file: input_files.InputFile, max_bytes: int
) -> Iterator[lines.Part]:
    """Yields the parts of a file, of about max_bytes where the format allows it.

    Raises:
      ConfigError: when a Parquet file is corrupt or has no such column.
    """
    kind, argument = input_files.parse(source.spec)
    if kind in input_files.PARQUET_KINDS:
        yield from ranges(parquet.row_groups(file.path, argument), max_bytes)
    elif kind == "jsonl" and formats.is_divisible(file.path):
        number = max(1, round(file.num_bytes / max_bytes))
        for i in range(number):
            start = file.num_bytes * i // number
            yield start, file.num_bytes * (i + 1) // number
    else:
        yield lines.WHOLE


def ranges(sizes: Sequence[int], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Divides consecutive items, such as row groups, into ranges of limited size.

    Args:
      sizes: size of each item in bytes.
      max_bytes: maximum size of a range of several items.

    Yields:
      The first item of a range, and the one after its last.
    """
    start, num_bytes = 0, 0
    for i, size in enumerate(sizes):
        if i > start and num_bytes + size > max_bytes:
            yield start, i
            start, num_bytes = i, 0
        num_bytes += size
    if sizes:
        yield start, len(sizes)
