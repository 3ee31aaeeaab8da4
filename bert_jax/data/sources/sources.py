"""The kinds of sources, the syntax of a source spec, and the reading of documents.

embedded:                       docstrings of the installed Python and its packages
text:GLOB                       plain text; see `plain.documents_of` for how it is read
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
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

from bert_jax import storage
from bert_jax.config import DataConfig
from bert_jax.data.sources import lines
from bert_jax.data.sources.embedded import Embedded
from bert_jax.data.sources.hub_datasets import HubDataset
from bert_jax.data.sources.json_lines import JsonLines
from bert_jax.data.sources.kind import DatasetSource, Document, FileSource, InputFile
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


@dataclasses.dataclass(frozen=True)
class Source:
    """An item of config.data.sources and its files; see `kind.Found`."""

    spec: str
    files: tuple[InputFile, ...]
    version: tuple[str, ...] = ()
    commit: str | None = None

    @property
    def kind(self) -> DatasetSource | FileSource:
        return parse(self.spec)

    @property
    def text_bytes(self) -> int | None:
        """Returns the estimated size of the text in bytes; None if it is unknown."""
        if self.kind.is_download:
            return None
        return sum(file.text_bytes for file in self.files)

    @property
    def is_remote(self) -> bool:
        paths = (file.path for file in self.files[:1])
        return self.kind.is_download or any(map(storage.is_remote, paths))


def find(specs: tuple[str, ...], record: str | None = None) -> tuple[Source, ...]:
    """Finds the files of each source, see `SourceKind.find`."""
    return tuple(Source(spec, *parse(spec).find(record)) for spec in specs)


def total_bytes(found: tuple[Source, ...]) -> int | None:
    """Returns the estimated size of all text in bytes; None if a size is unknown."""
    sizes = [source.text_bytes for source in found]
    return None if None in sizes else sum(filter(None, sizes))


def no_text(source: Source) -> ConfigError:
    """Returns the error for a source whose documents contain no text."""
    paths = [file.path for file in source.files]
    names = ", ".join(paths[:3]) + ", ..." * (len(paths) > 3)
    files = f": 0 documents in {len(paths)} file(s), {names}" if paths else ""
    return ConfigError(f"config.data.sources: no text in {source.spec!r}{files}")


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
    for document in _read(parse(spec), data_config, counts, files):
        if data_config.invalid_utf8 == "skip":
            if not all(map(lines.is_utf8, document.lines)):
                counts["documents_not_utf8"] += 1
                continue
        yield document


def _read(
    kind: DatasetSource | FileSource,
    data_config: DataConfig,
    counts: collections.Counter[str],
    files: Sequence[tuple[str, lines.Part]] | None,
) -> Iterator[Document]:
    if isinstance(kind, DatasetSource):
        yield from kind.read(data_config, counts)
        return
    if files is None:
        files = [(file.path, file.part) for file in kind.find(None).files]
    for path, part in files:
        if isinstance(counts, lines.ReadCounts):
            counts.start_file()
        try:
            yield from kind.read(path, part, data_config, counts)
        except ConfigError as error:  # the rest of the file cannot be read
            lines.reject(counts, error)
