"""Runs the commands that compute a result for each line: predict, extract and score.

Lines are read in chunks and split into their parts.
"""

import collections
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import flags

from bert_jax import cli
from bert_jax.data.sources import lines
from bert_jax.errors import ConfigError
from bert_jax.inference.model import DTYPES, WEIGHTS, Model, Parts
from bert_jax.monitoring.progress import Progress

SEPARATOR = " ||| "  # from google-research/bert extract_features.py
LINES_AT_ONCE = 2048  # lines of a chunk, which is held in memory and sorted by length
# Files with these names usually have more than one text per line.
NOT_LINES = (".csv", ".tsv", ".json", ".jsonl", ".html", ".htm", ".xml")
flags.disclaim_key_flags()  # those of `define_flags` are flags of the command


def define_flags(
    batch_size: int, *, has_weights: bool = False, has_lowercase: bool = False
) -> None:
    """Defines the flags of a command, except for --output."""
    cli.define_path("model", "directory of a model, or its name on the Hub")
    cli.define_path("input", "file with one input per line; - for stdin")
    help_ = "maximum tokens of a row; default: the model's"
    flags.DEFINE_integer("max_length", None, help_)
    flags.DEFINE_integer("batch_size", batch_size, "rows per step, over all devices", 1)
    help_ = "bfloat16: faster on TPUs and GPUs"
    flags.DEFINE_enum("compute_dtype", "float32", DTYPES, help_)
    if has_weights:
        help_ = "int8: a quarter of the memory"
        flags.DEFINE_enum("weights", "float32", WEIGHTS, help_)
    if has_lowercase:
        help_ = "whether the model was trained on lower-cased text, if unrecorded"
        flags.DEFINE_bool("lowercase", None, help_)


def options(*more: str) -> dict[str, Any]:
    """Returns the values of the flags above, which are options of `inference.load`."""
    names = ("max_length", "batch_size", "compute_dtype", "weights", "lowercase", *more)
    return {name: flags.FLAGS[name].value for name in names if name in flags.FLAGS}


def process(
    path: str,
    max_parts: int,
    compute: Callable[..., Any],
    write: Callable[[list[Parts], Any], object],
    progress: Progress | None,
    *,
    is_uniform: bool = False,
) -> tuple[int, float]:
    """Computes and writes the results of all lines; returns their number and seconds.

    `compute` maps a chunk of `read_chunks` to one result for each line.
    """
    begin, num_lines = time.monotonic(), 0
    on_batch = progress.add if progress else None
    for chunk in read_chunks(path, max_parts, is_uniform=is_uniform):
        if not num_lines and Path(path).suffix.lower() in NOT_LINES:
            cli.print_notes(
                [
                    f"--input={path}: every line is read as a text, with its separators"
                    " or markup, the first line included; unless that is meant, give a"
                    " file of the texts alone, one per line"
                ]
            )
        write(chunk, compute(chunk, on_batch=on_batch))
        num_lines += len(chunk)
    return num_lines, time.monotonic() - begin


def print_summary(model: Model, num_texts: int, secs: float, output: str) -> None:
    """Prints the last line of a command whose `model` counts tokens."""
    num_tokens: int = vars(model)["num_tokens"]
    truncated = model.num_truncated and f", {model.num_truncated:,} of them truncated"
    print(
        f"{num_texts:,} texts{truncated or ''}, {num_tokens:,} tokens in"
        f" {secs:.1f} s: {num_tokens / secs:,.0f} tokens/s, compilation included;"
        f" written to {output}"
    )


def read(path: str) -> Iterator[str]:
    """Yields the lines of a file or a pipe, or of standard input for "-"."""
    reading = lines.Reading(collections.Counter())
    path = "/dev/stdin" if path == "-" else path
    numbered = lines.read(path, reading)
    if path == "/dev/stdin" or Path(path).is_fifo():  # as of <(command) in a shell
        pipe = sys.stdin.buffer if path == "/dev/stdin" else open(path, "rb")
        numbered = lines.split(_pieces(pipe), path, reading)
    for _, line in numbered:
        yield line


def _pieces(pipe: Any) -> Iterator[bytes]:
    """Yields the bytes of a pipe, a BufferedReader, when they arrive."""
    yield pipe.read(lines.HEAD_BYTES)
    while piece := pipe.read1(lines.CHUNK_BYTES):
        yield piece


def read_chunks(
    path: str, max_parts: int, *, is_uniform: bool = False
) -> Iterator[list[Parts]]:
    """Yields chunks of LINES_AT_ONCE lines, each line split into its parts.

    Separators beyond `max_parts` parts belong to the last part.
    """
    lines, num_parts = read(path), 0
    while chunk := list(itertools.islice(lines, LINES_AT_ONCE)):
        split = [tuple(line.split(SEPARATOR, max_parts - 1)) for line in chunk]
        num_parts = num_parts or len(split[0])
        for line, parts in zip(chunk, split, strict=True):
            if is_uniform and len(parts) != num_parts:
                raise ConfigError(
                    f"--input has the line {line[:60]!r} with {len(parts)}"
                    f" part{'s' * (len(parts) > 1)}, but its first line has"
                    f" {num_parts}; give all lines the same number of parts"
                )
        yield split
    if not num_parts:
        raise ConfigError(f"--input={path} has no lines; give at least one")
