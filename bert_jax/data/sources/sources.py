"""Reads the documents of a source; registry.py has the syntax of its spec.

Reading includes decoding, finding document boundaries and joining hard-wrapped lines.
corpus/encoding.py cleans the documents and splits them into sentences.
"""

import collections
from collections.abc import Iterator, Sequence

from bert_jax.config import DataConfig
from bert_jax.data.sources import input_files, lines, registry
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.kind import DatasetSource, DivisibleSource


def prepare(specs: Sequence[str]) -> None:
    """Downloads the datasets among the sources.

    Raises:
      ConfigError: when a dataset does not exist or cannot be prepared.
    """
    for kind in map(registry.parse, specs):
        if isinstance(kind, DatasetSource):
            kind.prepare()


def documents(
    source: str, data_config: DataConfig, counts: collections.Counter[str]
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

    Raises:
      ConfigError: when the spec names an unknown kind or a file, field or dataset that
        does not exist, when a file is not in the format of the spec, or when the
        source contains no text.
    """
    has_text = False
    for document in read(source, data_config, counts):
        has_text = has_text or bool(document.lines)
        yield document
    if not has_text:
        raise input_files.no_text(source)


def read(
    source: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    paths: Sequence[str] | None = None,
    part: lines.Part = lines.WHOLE,
) -> Iterator[Document]:
    """Like `documents`, but accepts a source without text.

    Args:
      source: as for `documents`.
      data_config: as for `documents`.
      counts: as for `documents`.
      paths: the files of the source to read; None reads all of them.
      part: the part of each file to read, from `DivisibleSource.parts`.
    """
    for document in _read(source, data_config, counts, paths, part):
        if data_config.invalid_utf8 == "skip":
            if not all(map(lines.is_utf8, document.lines)):
                counts["documents_not_utf8"] += 1
                continue
        yield document


def _read(
    source: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    paths: Sequence[str] | None,
    part: lines.Part,
) -> Iterator[Document]:
    kind = registry.parse(source)
    if isinstance(kind, DatasetSource):
        yield from kind.read(data_config, counts)
        return
    if paths is None:
        paths = [file.path for file in kind.find(None).files]
    for path in paths:
        if isinstance(kind, DivisibleSource):
            yield from kind.read_part(path, part, data_config, counts)
        else:
            yield from kind.read(path, data_config, counts)
