"""Lines of text that a person gives, some at a time; parts of a line stand apart."""

import codecs
import collections
import sys
from collections.abc import Iterator

from bert_jax.data.sources import lines
from bert_jax.errors import ConfigError

Parts = tuple[str, ...]  # of a line
SEPARATOR = " ||| "  # google-research/bert extract_features.py
LINES_AT_ONCE = 2048  # which are sorted by length, and kept in memory
MAX_LINE_BYTES = 2**30  # no text comes in parts


def read(path: str) -> Iterator[str]:
    """Yields the lines of a file, or of standard input for "-".

    Raises:
      ConfigError: when it cannot be read or is not UTF-8.
    """
    counts: collections.Counter[str] = collections.Counter()
    if path != "-":
        for _, line in lines.read(path, MAX_LINE_BYTES, None, counts):
            yield line
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
        yield lines.repair(text, f"standard input:{number}", None, counts)


def batches(path: str, max_parts: int) -> Iterator[list[Parts]]:
    """Yields lines in their parts, some lines at a time.

    Args:
      path: as of `read`.
      max_parts: of a line; what follows belongs to the last one.

    Raises:
      ConfigError: as `read`, or when there is no line.
    """
    some: list[Parts] = []
    is_empty = True
    for line in read(path):
        is_empty = False
        some.append(tuple(line.split(SEPARATOR, max_parts - 1)))
        if len(some) == LINES_AT_ONCE:
            yield some
            some = []
    if is_empty:
        raise ConfigError(f"--input={path} has no lines")
    if some:
        yield some
