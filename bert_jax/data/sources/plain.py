"""Reads documents from plain text files, and refuses files of markup and tables.

layout.py finds the documents of a file, and unwrap.py joins its hard-wrapped lines.
"""

import collections
import json
import re
from collections.abc import Iterator
from pathlib import PurePath

from bert_jax.config import DataConfig
from bert_jax.data.sources import formats, layout, lines
from bert_jax.data.sources.document import assemble
from bert_jax.data.sources.kind import FileSource
from bert_jax.errors import ConfigError

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
    """Plain text files; `layout.documents_of` finds the documents of a file."""

    name = "text"
    form = "text:GLOB"

    def read(self, path, part, data_config, counts):
        source_lines = _lines(path, self.pattern, data_config, counts)
        stream, is_split = layout.documents_of(source_lines)
        yield from assemble(stream, path, data_config, counts, is_split=is_split)


class Files(FileSource):
    """Plain text files that are one document each."""

    name = "files"
    form = "files:GLOB"

    def stream(self, path, part, data_config, counts):
        return layout.one_document(_lines(path, self.pattern, data_config, counts))


def _lines(
    path: str, pattern: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[str]:
    """Yields the lines of a plain text file, and refuses markup, tables and JSON."""
    is_checked = False
    for line in lines.plain_lines(path, data_config, counts):
        if not is_checked and line.strip():
            if problem := _problem(line.lstrip(), path, pattern):
                raise ConfigError(f"{path} is {problem}")
            is_checked = True
        yield line


def _problem(line: str, path: str, pattern: str) -> str | None:
    """Describes a file that is not plain text by its name and first line."""
    name = PurePath(path)
    if name.suffix in formats.COMPRESSED:
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
        found = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    if found:
        names = ", ".join(found)
        return (
            f"JSON Lines; write jsonl:{pattern}#FIELD with one of its fields: {names}"
        )
    if name.suffix.lower() == ".json" and line.startswith(("{", "[")):
        return "JSON; write one object per line to a file, and jsonl:GLOB#FIELD"
    return None
