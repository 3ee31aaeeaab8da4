"""The kinds of sources, and the reading of documents.

The `form` of a class is the syntax of its spec; docs/your_own_corpus.md describes it.
Reading includes decoding, finding document boundaries and joining hard-wrapped lines.
corpus/encoding.py cleans the documents and splits them into sentences.
"""

import collections
import difflib
import glob
import os
import re
from collections.abc import Iterator, Sequence

from bert_jax.config import DataConfig
from bert_jax.data.sources import lines
from bert_jax.data.sources.embedded import Embedded
from bert_jax.data.sources.hub_datasets import HubDataset
from bert_jax.data.sources.json_lines import JsonLines, WikiExtractor
from bert_jax.data.sources.kind import DatasetSource, Document, FileSource, Source
from bert_jax.data.sources.lines import Reading
from bert_jax.data.sources.parquet import Parquet
from bert_jax.data.sources.plain import Files, Text
from bert_jax.data.sources.tfds import TensorFlowDataset
from bert_jax.errors import ConfigError

_CLASSES = (
    *(Embedded, Text, Files, JsonLines),
    *(Parquet, WikiExtractor, HubDataset, TensorFlowDataset),
)
KINDS: dict[str, type[DatasetSource | FileSource]] = {x.name: x for x in _CLASSES}


def parse(spec: str) -> DatasetSource | FileSource:
    name, colon, argument = spec.partition(":")
    kind = KINDS.get(name)
    if kind is None or not colon or bool(argument) == kind.form.endswith(":"):
        forms = ", ".join(each.form for each in KINDS.values())
        hint = ""
        if spec and not colon and not kind:
            pattern = spec
            if os.path.isdir(spec):
                pattern = f"{glob.escape(spec.rstrip('/'))}/**/*.txt"
            hint = f"; for files, write text:{pattern}"
            if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", spec):
                hint += f", and hf:{spec} for a dataset of the Hub"
        elif not kind and (near := difflib.get_close_matches(name, KINDS, n=1)):
            hint = f"; the nearest is {near[0]}:"
        raise ConfigError(
            f"config.data.sources has {spec!r}; a source is one of {forms}{hint}"
        )
    return kind(spec)


def find(specs: tuple[str, ...], record: str | None = None) -> tuple[Source, ...]:
    """Finds the files of each source, see `SourceKind.find`."""
    return tuple(parse(spec).find(record) for spec in specs)


def total_bytes(sources: tuple[Source, ...]) -> int | None:
    """Returns the estimated size of all text in bytes; None if a size is unknown."""
    sizes = [source.text_bytes for source in sources]
    return None if None in sizes else sum(filter(None, sizes))


def read(
    spec: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    files: Sequence[tuple[str, lines.Part]] | None = None,
) -> Iterator[Document]:
    """Yields the documents of a source, in a fixed order, empty ones included.

    Memory stays bounded: documents over max_document_bytes and lines over
    max_line_bytes are yielded in parts, and a JSON line over
    `json_lines.JSON_OVERHEAD` * max_document_bytes is dropped.

    Args:
      counts: "documents_cut", "documents_not_utf8", "documents_unwrapped",
        "json_lines_too_long", "lines_cut", "lines_repaired" and "files_skipped" are
        incremented. `lines.ReadCounts` also collects the errors of lines and files.
      files: the files to read and the parts of them; None reads all of the source.
    """
    limits = data_config.max_line_bytes, data_config.max_document_bytes
    reading = Reading(counts, data_config.invalid_utf8, *limits)
    for document in _read(parse(spec), reading, files):
        if data_config.invalid_utf8 == "skip" and not all(
            map(lines.is_utf8, document.lines)
        ):
            counts["documents_not_utf8"] += 1
        else:
            yield document


def _read(
    kind: DatasetSource | FileSource,
    reading: Reading,
    files: Sequence[tuple[str, lines.Part]] | None,
) -> Iterator[Document]:
    if isinstance(kind, DatasetSource):
        yield from kind.read(reading)
        return
    if files is None:
        files = [(file.path, file.part) for file in kind.find(None).files]
    for path, part in files:
        if isinstance(reading.counts, lines.ReadCounts):
            reading.counts.num_of_file = 0
        try:
            yield from kind.read(path, part, reading)
        except ConfigError as error:  # the rest of the file cannot be read
            reading.reject(error)
