"""Reads plain text: finds the documents of a file, and refuses markup and tables.

unwrap.py joins the hard-wrapped lines of each document afterwards.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from bert_jax.data.sources import lines, sentences, unwrap
from bert_jax.data.sources.kind import FileSource, assemble
from bert_jax.data.sources.lines import Reading
from bert_jax.data.sources.unwrap import HEADING, ORNAMENT, Stream
from bert_jax.errors import ConfigError

SAMPLE_LINES = 2000
SAMPLE_CHARS = 2**20
# The number of sampled lines that are split into sentences; enough to estimate whether
# nine in ten lines hold one sentence.
SPLIT_LINES = 200

# Opening tags of files of markup, and what to do. `<p align="center">`, for example, is
# in many Markdown files.
_MARKUP = (
    (r"<doc\s[^>]*>", "WikiExtractor output; write wikiextractor:{pattern}"),
    (
        r"<mediawiki\b",
        "a dump of a wiki; extract its text with WikiExtractor, and write"
        " wikiextractor:GLOB",
    ),
    (
        r"<(!doctype|html|head|body|\?xml|doc)\b",
        "HTML, XML or SGML, and its markup would be trained on; convert it to text, for"
        " example with pandoc --to=plain",
    ),
)


class Text(FileSource):
    """Plain text files; `documents_of` finds the documents of a file."""

    name = "text"
    form = "text:GLOB"

    def read(self, path, part, reading):
        stream, is_split = documents_of(_lines(path, self.pattern, reading))
        yield from assemble(stream, reading, is_split=is_split)


class Files(FileSource):
    """Plain text files that are one document each."""

    name = "files"
    form = "files:GLOB"

    def stream(self, path, part, reading):
        """Yields the lines of the file; headings become blank lines."""
        for line in _lines(path, self.pattern, reading):
            yield "" if HEADING.match(line) or ORNAMENT.match(line) else line


def plain_lines(path: str, reading: Reading) -> Iterator[str]:
    """Yields the lines of a plain text file, split at every Unicode line boundary.

    Increments "lines_cut" and the counts of `lines.read`.
    """
    previous = 0
    for number, line in lines.read(path, reading):
        if number == previous:
            reading.counts["lines_cut"] += 1
        previous = number
        # Vertical tab, form feed, U+0085, U+2028, U+2029 and the like.
        yield from line.splitlines() or ("",)


def _lines(path: str, pattern: str, reading: Reading) -> Iterator[str]:
    """Yields the lines of a plain text file, and refuses markup, tables and JSON."""
    is_checked = False
    for line in plain_lines(path, reading):
        if not is_checked and line.strip():
            if problem := _problem(line.lstrip(), path, pattern):
                raise ConfigError(f"{path} is {problem}")
            is_checked = True
        yield line


def _problem(line: str, path: str, pattern: str) -> str | None:
    """Describes a file that is not plain text by its name and first line."""
    name = PurePath(path)
    if name.suffix in lines.COMPRESSED:
        name = name.with_suffix("")  # of a.csv.gz, a.csv
    if name.suffix.lower() in (".csv", ".tsv"):
        return (
            "a table by its name, and all of its columns would be trained on; convert"
            " it to Parquet, and write parquet:GLOB#COLUMN, or, if it is plain text,"
            " end its name in .txt"
        )
    for tag, problem in _MARKUP:
        if re.match(tag, line, re.IGNORECASE):
            return problem.format(pattern=pattern)
    try:
        row = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        row = None
    if row:
        names = ", ".join(row)
        return (
            f"JSON Lines; write jsonl:{pattern}#FIELD with one of its fields: {names}"
        )
    # A long first line arrives cut, so that it could not be parsed.
    if name.suffix.lower() in (".jsonl", ".ndjson") and line.startswith("{"):
        return f"JSON Lines by its name; write jsonl:{pattern}#FIELD"
    if name.suffix.lower() == ".json" and line.startswith(("{", "[")):
        return "JSON; write one object per line to a file, and jsonl:GLOB#FIELD"
    return None


# -------------------------------------------------------- the documents of a file


def documents_of(source_lines: Iterator[str]) -> tuple[Stream, bool]:
    """Detects the layout of a text file and marks the ends of its documents.

    The layout is detected from the first lines. The first rule that applies is used:

    1. There are headings (Markdown `# ...`, or `= Title =` as in WikiText): each
       heading starts a document of running text; blank lines separate paragraphs.
    2. Most lines are wrapped (see `unwrap.find_wrapping`), or every line is between
       blank lines: the file is one document; blank lines separate paragraphs.
    3. At least nine in ten lines hold one sentence: each line is a sentence; blank
       lines separate documents.
    4. Otherwise each line is a paragraph; blank lines separate documents.

    Also returns whether each line is a sentence.
    """
    sample, rest = _sampled(source_lines)
    if any(map(HEADING.match, sample)):
        return _under_headings(rest), False
    filled = [bool(line.strip()) for line in sample]
    has_groups = any(a and b for a, b in itertools.pairwise(filled))
    if unwrap.find_wrapping(sample) or not has_groups:
        return rest, False
    lines_of_text = list(itertools.compress(sample, filled))[:SPLIT_LINES]
    single = sum(len(sentences.split(line)) == 1 for line in lines_of_text)
    return _between_blank_lines(rest), single >= 0.9 * len(lines_of_text)


def _sampled(source_lines: Iterator[str]) -> tuple[list[str], Iterator[str]]:
    sample: list[str] = []
    size = 0
    for line in itertools.islice(source_lines, SAMPLE_LINES):
        sample.append(line)
        size += len(line)
        if size > SAMPLE_CHARS:
            break
    return sample, itertools.chain(sample, source_lines)


def _under_headings(source_lines: Iterable[str]) -> Stream:
    has_text = False
    for line in source_lines:
        if HEADING.match(line):
            if has_text:
                yield None
            has_text = False
        elif ORNAMENT.match(line):
            yield ""
        else:
            has_text = has_text or bool(line.strip())
            yield line


def _between_blank_lines(source_lines: Iterable[str]) -> Stream:
    has_text = False
    for line in source_lines:
        if line.strip():
            has_text = True
            yield line
        elif has_text:
            has_text = False
            yield None
