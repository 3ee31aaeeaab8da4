"""Reads the documents of a source; registry.py has the syntax of its spec.

Reading includes decoding, finding document boundaries and joining hard-wrapped lines.
corpus/encoding.py cleans the documents and splits them into sentences.
"""

import collections
from collections.abc import Iterator, Sequence

from bert_jax.config import DataConfig
from bert_jax.data.sources import lines, registry
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.kind import DatasetSource, FileSource


def prepare(specs: Sequence[str]) -> None:
    """Downloads the datasets among the sources."""
    for kind in map(registry.parse, specs):
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
    for document in _read(registry.parse(source), data_config, counts, paths, part):
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
