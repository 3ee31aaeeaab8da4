"""The kinds of sources, the syntax of a source spec, and the reading of documents.

embedded:                       docstrings of the installed Python and its packages
text:GLOB                       plain text; see layout.py for how it is read
files:GLOB                      plain text, one document per file
jsonl:GLOB#field.path           JSON Lines, one document per object, in one field
parquet:GLOB[#column.path]      Parquet, one document per row, in one column
wikiextractor:GLOB              WikiExtractor output, <doc ...> ... </doc> or JSON
hf:OWNER/NAME[/CONFIG][:SPLIT][#column.path]
                                Parquet on the Hugging Face Hub; see hub_datasets.py
tfds:NAME[:SPLIT][#field.path]  a text dataset of TensorFlow Datasets

Reading includes decoding, finding document boundaries and joining hard-wrapped lines.
corpus/encoding.py cleans the documents and splits them into sentences.
"""

import collections
import os
import re
from collections.abc import Iterator, Sequence

from bert_jax.config import DataConfig
from bert_jax.data.sources import lines
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.embedded import Embedded
from bert_jax.data.sources.hub_datasets import HubDataset
from bert_jax.data.sources.json_lines import JsonLines
from bert_jax.data.sources.kind import DatasetSource, FileSource
from bert_jax.data.sources.parquet import Parquet
from bert_jax.data.sources.plain import Files, Text
from bert_jax.data.sources.tfds import TensorFlowDataset
from bert_jax.data.sources.wikiextractor import WikiExtractor
from bert_jax.errors import ConfigError

_CLASSES = (
    *(Embedded, Text, Files, JsonLines),
    *(Parquet, WikiExtractor, HubDataset, TensorFlowDataset),
)
KINDS: dict[str, type[DatasetSource | FileSource]] = {x.name: x for x in _CLASSES}


def parse(spec: str) -> DatasetSource | FileSource:
    """Returns the source of a spec."""
    name, colon, argument = spec.partition(":")
    kind = KINDS.get(name)
    if kind is None or not colon or not (argument or kind.form == f"{name}:"):
        forms = ", ".join(each.form for each in KINDS.values())
        raise ConfigError(
            f"config.data.sources has {spec!r}; a source is one of {forms}{_hint(spec)}"
        )
    return kind(spec)


def _hint(spec: str) -> str:
    """Returns the end of the error for a spec that may be a path or a dataset."""
    if not spec or ":" in spec or spec in KINDS:
        return ""
    if os.path.isdir(spec):
        return f"; for these files, write text:{spec.rstrip('/')}/**/*.txt"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", spec) and not os.path.exists(spec):
        return f"; for a dataset on the Hub, write hf:{spec}"
    return f"; for files, write text:{spec}"


def prepare(specs: Sequence[str]) -> None:
    """Downloads the datasets among the sources."""
    for kind in map(parse, specs):
        if isinstance(kind, DatasetSource):
            kind.prepare()


def read(
    source: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    paths: Sequence[str] | None = None,
    part: lines.Part = lines.WHOLE,
) -> Iterator[Document]:
    """Yields the documents of one source, in a fixed order, empty ones included.

    Memory stays bounded: documents over max_document_bytes and lines over
    max_line_bytes are yielded in parts, and a JSON line over
    `json_lines.JSON_OVERHEAD` * max_document_bytes is dropped.

    Args:
      source: a spec, as in config.data.sources.
      data_config: its invalid_utf8, max_line_bytes and max_document_bytes are used.
      counts: "documents_cut", "documents_not_utf8", "documents_unwrapped",
        "json_lines_too_long", "lines_cut", "lines_repaired" and "files_skipped" are
        incremented.
      paths: the files of the source to read; None reads all of them.
      part: the part of each file to read, from `FileSource.parts`.

    Raises:
      ConfigError: when the spec is malformed, when a file, field or dataset does not
        exist, or when a file is not in the format of the spec.
    """
    for document in _read(parse(source), data_config, counts, paths, part):
        if data_config.invalid_utf8 == "skip":
            if not all(map(lines.is_utf8, document.lines)):
                counts["documents_not_utf8"] += 1
                continue
        yield document


def _read(
    kind: DatasetSource | FileSource,
    data_config: DataConfig,
    counts: collections.Counter[str],
    paths: Sequence[str] | None,
    part: lines.Part,
) -> Iterator[Document]:
    if isinstance(kind, DatasetSource):
        yield from kind.read(data_config, counts)
        return
    if paths is None:
        paths = [file.path for file in kind.find(None).files]
    for path in paths:
        yield from kind.read(path, part, data_config, counts)
