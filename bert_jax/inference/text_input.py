"""Reads input lines in chunks and splits each line into its parts."""

import collections
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.sources import formats, lines
from bert_jax.errors import ConfigError
from bert_jax.inference.model import Parts

SEPARATOR = " ||| "  # from google-research/bert extract_features.py
LINES_AT_ONCE = 2048  # lines of a chunk, which is held in memory and sorted by length
MAX_LINE_BYTES = 2**30  # large enough that no line is split


def read(path: str) -> Iterator[str]:
    """Yields the lines of a file or a pipe, or of standard input for "-"."""
    counts: collections.Counter[str] = collections.Counter()
    limits = MAX_LINE_BYTES, None, counts
    path = "/dev/stdin" if path == "-" else path
    if path == "/dev/stdin":
        numbered = lines.split(_chunks(sys.stdin.buffer), path, *limits)
    elif Path(path).is_fifo():  # as of <(command) in a shell
        numbered = lines.split(_chunks(open(path, "rb")), path, *limits)
    else:
        numbered = lines.read(path, *limits)
    for _, line in numbered:
        yield line


def _chunks(pipe: Any) -> Iterator[bytes]:
    """Yields the bytes of a pipe, a BufferedReader, when they arrive."""
    yield pipe.read(formats.HEAD_BYTES)
    while chunk := pipe.read1(lines.CHUNK_BYTES):
        yield chunk


def batches(
    path: str, max_parts: int, *, is_uniform: bool = False
) -> Iterator[list[Parts]]:
    """Yields chunks of LINES_AT_ONCE lines, each line split into its parts.

    Args:
      path: a file, or "-" for standard input.
      max_parts: maximum parts of a line; further separators belong to the last part.
      is_uniform: whether all lines must have as many parts as the first.
    """
    chunk: list[Parts] = []
    num_parts = 0
    for line in read(path):
        parts = tuple(line.split(SEPARATOR, max_parts - 1))
        num_parts = num_parts or len(parts)
        if is_uniform and len(parts) != num_parts:
            raise ConfigError(
                f"--input has the line {line[:60]!r} with {len(parts)}"
                f" part{'s' * (len(parts) > 1)}, but its first line has {num_parts};"
                " give all lines the same number of parts"
            )
        chunk.append(parts)
        if len(chunk) == LINES_AT_ONCE:
            yield chunk
            chunk = []
    if not num_parts:
        raise ConfigError(f"--input={path} has no lines; give at least one")
    if chunk:
        yield chunk
