"""Where documents come from: a source spec -> documents as they are, uncleaned.

embedded:                       documentation inside this Python and our dependencies
text:GLOB                       plain text; see layout.py for how it is read
files:GLOB                      plain text, each file a document
jsonl:GLOB#field.path           a JSON object a line, the document in one field
wikiextractor:GLOB              WikiExtractor's files, <doc ...> ... </doc> or JSON
tfds:NAME[:SPLIT][#field.path]  a text dataset of TensorFlow Datasets

Reading is input and output, decoding, finding where documents end and joining
hard-wrapped lines; encoding.py splits the documents into sentences.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data.sources import (
    embedded,
    input_files,
    json_lines,
    layout,
    lines,
)
from bert_jax.data.sources import tfds as tfds_lib
from bert_jax.data.sources.document import Document, _assemble, _text
from bert_jax.data.sources.unwrap import Stream
from bert_jax.errors import ConfigError


def documents(
    source: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    """Yields the documents of one source, in a fixed order, empty ones included.

    Memory stays bounded: a document over max_document_bytes comes in parts, a line
    over max_line_bytes too, and a JSON line far over them is dropped.

    Args:
      source: a spec, as in config.data.sources.
      data_config: its invalid_utf8, max_line_bytes and max_document_bytes hold.
      counts: counted up by "documents_cut", "documents_not_utf8",
        "documents_unwrapped", "json_lines_too_long", "lines_cut", "lines_repaired" and
        "files_skipped".

    Raises:
      ConfigError: when the spec names no known kind, no file, or a field or dataset
        that does not exist, when a file is not what the spec says, or when there is
        no text in any.
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
) -> Iterator[Document]:
    """Yields documents like `documents`, but a source without text is no error.

    Args:
      source: see `documents`.
      data_config: see `documents`.
      counts: see `documents`.
      paths: files of the source, to read only these.
    """
    for document in _read(source, data_config, counts, paths):
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
) -> Iterator[Document]:
    kind, argument = input_files.parse(source)
    if kind not in input_files.FILE_KINDS:
        yield from _DATASET_READERS[kind](argument, data_config, counts)
        return
    pattern = input_files.pattern(kind, argument)
    for path in input_files.paths(pattern) if paths is None else paths:
        yield from _FILE_READERS[kind](path, argument, data_config, counts)


# ------------------------------------------------------------------- plain text


def _one_a_file(
    path: str, _: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    stream = layout.one_document(_plain_lines(path, data_config, counts))
    yield from _assemble(stream, path, data_config, counts)


def _plain_lines(
    path: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[str]:
    """Yields the lines of a text file, ended by whatever Unicode ends a line with."""
    numbered = lines.read(
        path, data_config.max_line_bytes, data_config.invalid_utf8, counts
    )
    previous = 0
    for number, line in numbered:
        if number == previous:
            counts["lines_cut"] += 1
        previous = number
        # Vertical tab, form feed, U+0085, U+2028, U+2029 and the like.
        yield from line.splitlines() or ("",)


# ---------------------------------------------------- JSON lines and WikiExtractor


# ------------------------------------------------------------- TensorFlow Datasets


def _tfds(
    argument: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    named, separator, field = argument.partition("#")
    name, split = tfds_lib.name_and_split(named)
    if not name:
        raise ConfigError(
            f"config.data.sources has 'tfds:{argument}';"
            " write tfds:NAME[:SPLIT][#field]"
        )
    split = split or "train"
    builder = tfds_lib.builder(name, "config.data.sources")
    path = _text_field(name, builder.info.features or {}, field if separator else None)
    dataset = tfds_lib.dataset(builder, split, "config.data.sources")

    def stream() -> Stream:
        for number, example in enumerate(dataset.as_numpy_iterator(), start=1):
            for key in path:
                example = example[key]
            text = example.decode("utf-8", "surrogateescape")
            where = f"{name} {split}:{number}"
            text = lines.repair(text, where, data_config.invalid_utf8, counts)
            yield from text.splitlines()
            yield None

    yield from _assemble(stream(), f"{name} {split}", data_config, counts)


def _text_field(name: str, features: Any, field: str | None) -> list[str]:
    """Returns the path of a text feature: the one named, "text", or the only one."""
    texts = _text_features(features)
    if field is None:
        named = [path for path in texts if path == "text"] or texts
        if len(named) == 1:
            return named[0].split(".")
        raise ConfigError(
            f"config.data.sources: the text fields of {name} are"
            f" {', '.join(texts) or 'none'}; name one, as in tfds:{name}#field"
        )
    if field not in texts:
        kind = "is not text" if field in features else "does not exist"
        raise ConfigError(
            f"config.data.sources: field {field!r} of {name} {kind}; its text fields"
            f" are {', '.join(texts) or 'none'}"
        )
    return field.split(".")


def _text_features(features: Any, prefix: str = "") -> list[str]:
    """Returns the dotted paths of all features that are a string an example."""
    found: list[str] = []
    for key, feature in features.items():
        if hasattr(feature, "items"):
            found += _text_features(feature, f"{prefix}{key}.")
        elif feature.shape == () and np.dtype(feature.np_dtype) == object:
            found.append(prefix + key)
    return found


# --------------------------------------------------------------- embedded corpus


def _embedded(
    argument: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    if argument:
        raise ConfigError(f"config.data.sources: embedded: takes no {argument!r}")
    for name, found in embedded.documents():
        stream = iter((*found, None))
        yield from _assemble(stream, name, data_config, counts, is_split=True)


_DATASET_READERS: dict[
    str, Callable[[str, DataConfig, collections.Counter[str]], Iterator[Document]]
] = {"embedded": _embedded, "tfds": _tfds}
# Called with a path and the spec's argument.
_FILE_READERS: dict[
    str, Callable[[str, str, DataConfig, collections.Counter[str]], Iterator[Document]]
] = {
    "text": _text,
    "files": _one_a_file,
    "jsonl": json_lines._jsonl,
    "wikiextractor": json_lines._wikiextractor,
}
