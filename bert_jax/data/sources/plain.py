"""Reads documents from plain text files, and refuses files of markup and tables.

layout.py finds the documents of a file, and unwrap.py joins its hard-wrapped lines.
"""

import collections
import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath

from bert_jax.config import DataConfig
from bert_jax.data.sources import formats, layout, lines
from bert_jax.data.sources.document import Document, assemble
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
# Suffixes of tables, and how pyarrow reads them.
_TABLES = {
    ".csv": "newlines_in_values=True",
    ".tsv": r"delimiter='\t', quote_char=False",
}


class Text(FileSource):
    """Plain text files; `layout.documents_of` finds the documents of a file."""

    name = "text"
    form = "text:GLOB"

    def read(
        self, path: str, data_config: DataConfig, counts: collections.Counter[str]
    ) -> Iterator[Document]:
        source_lines = _lines(path, self.pattern, data_config, counts)
        stream, is_split = layout.documents_of(source_lines)
        yield from assemble(stream, path, data_config, counts, is_split=is_split)


class Files(FileSource):
    """Plain text files that are one document each."""

    name = "files"
    form = "files:GLOB"

    def read(
        self, path: str, data_config: DataConfig, counts: collections.Counter[str]
    ) -> Iterator[Document]:
        stream = layout.one_document(_lines(path, self.pattern, data_config, counts))
        yield from assemble(stream, path, data_config, counts)


def _lines(
    path: str, pattern: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[str]:
    """Yields the lines of a plain text file.

    Raises:
      ConfigError: when the file is markup, a table or JSON.
    """
    found = lines.plain_lines(path, data_config, counts)
    start = []
    for line in found:
        start.append(line)
        if line.strip():
            if problem := _problem(line.lstrip(), path, pattern):
                raise ConfigError(f"{path} is {problem}")
            break
    yield from itertools.chain(start, found)


def _problem(line: str, path: str, pattern: str) -> str | None:
    """Describes a file that is not plain text by its name and first line."""
    suffix = _suffix(path)
    if suffix in _TABLES:
        return _table(path, _TABLES[suffix])
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
    if suffix == ".json" and line.startswith(("{", "[")):
        return "JSON; write one object per line to a file, and jsonl:GLOB#FIELD"
    return None


def _suffix(path: str) -> str:
    """Returns the suffix of a file's name, of a.csv.gz that of a.csv."""
    name = PurePath(path)
    if name.suffix in formats.COMPRESSED:
        name = name.with_suffix("")
    return name.suffix.lower()


def _table(path: str, options: str) -> str:
    """Describes a table, with a command that converts it."""
    code = (
        "from pyarrow import csv, parquet;"
        f" table = csv.read_csv({path!r}, parse_options=csv.ParseOptions({options}));"
        " parquet.write_table(table, 'table.parquet')"
    )
    return (
        "a table by its name, and all of its columns would be trained on; convert it:"
        f" python -c {shlex.quote(code)}, and write parquet:table.parquet#COLUMN; or,"
        " if it is plain text, end its name in .txt"
    )
