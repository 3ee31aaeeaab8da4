"""Reads the documents of a source spec.

embedded:                       docstrings of the installed Python and its packages
text:GLOB                       plain text; see layout.py for how it is read
files:GLOB                      plain text, one document per file
jsonl:GLOB#field.path           JSON Lines, one document per object, in one field
parquet:GLOB#column.path        Parquet, one document per row, in one column
wikiextractor:GLOB              WikiExtractor output, <doc ...> ... </doc> or JSON
hf:OWNER/NAME[/CONFIG][:SPLIT][#column.path]
                                Parquet on the Hugging Face Hub; see hub_datasets.py
tfds:NAME[:SPLIT][#field.path]  a text dataset of TensorFlow Datasets

Reading includes decoding, finding document boundaries and joining hard-wrapped lines.
corpus/encoding.py cleans the documents and splits them into sentences.
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
    parquet,
)
from bert_jax.data.sources import tfds as tfds_lib
from bert_jax.data.sources.document import Document, assemble
from bert_jax.data.sources.unwrap import Stream
from bert_jax.errors import ConfigError


def prepare(specs: Sequence[str]) -> None:
    """Downloads the datasets of TensorFlow Datasets among the sources.

    Raises:
      ConfigError: when a dataset does not exist or cannot be prepared.
    """
    for kind, argument in map(input_files.parse, specs):
        name, _ = tfds_lib.name_and_split(argument.partition("#")[0])
        if kind == "tfds" and name:
            builder = tfds_lib.builder(name, "config.data.sources")
            tfds_lib.prepare(builder, "config.data.sources")


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
      part: the part of each file to read, see `units`.
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
    kind, argument = input_files.parse(source)
    if kind in _DATASET_READERS:
        yield from _DATASET_READERS[kind](argument, data_config, counts)
        return
    if paths is None:
        paths = [file.path for file in input_files.find((source,))[0].files]
    # Only the readers of kinds that have parts take one.
    of_part = () if part == lines.WHOLE else (part,)
    for path in paths:
        yield from _FILE_READERS[kind](path, argument, data_config, counts, *of_part)


# ------------------------------------------------------------------- plain text


def _text(
    path: str, _: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    plain_lines = lines.plain_lines(path, data_config, counts)
    stream, is_split = layout.documents_of(plain_lines)
    yield from assemble(stream, path, data_config, counts, is_split=is_split)


def _files(
    path: str, _: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    stream = layout.one_document(lines.plain_lines(path, data_config, counts))
    yield from assemble(stream, path, data_config, counts)


# ------------------------------------------------------------- TensorFlow Datasets


def _tfds(
    argument: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    named, separator, field = argument.partition("#")
    name, split = tfds_lib.name_and_split(named)
    if not name:
        raise ConfigError(
            f"config.data.sources has 'tfds:{argument}', which names no dataset;"
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

    yield from assemble(stream(), f"{name} {split}", data_config, counts)


def _text_field(name: str, features: Any, field: str | None) -> list[str]:
    """Returns the path of the given text feature; by default "text" or the only one."""
    texts = _text_features(features)
    if field is None:
        named = [path for path in texts if path == "text"] or texts
        if len(named) == 1:
            return named[0].split(".")
        raise ConfigError(
            f"config.data.sources: the text fields of {name} are"
            f" {', '.join(texts) or 'none'}; name one of them, as in tfds:{name}#field"
        )
    if field not in texts:
        problem = "is not text" if field in features else "does not exist"
        raise ConfigError(
            f"config.data.sources: field {field!r} of {name} {problem}; use one of its"
            f" text fields: {', '.join(texts) or 'none'}"
        )
    return field.split(".")


def _text_features(features: Any, prefix: str = "") -> list[str]:
    """Returns the dotted paths of all features that are scalar strings."""
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
        raise ConfigError(
            f"config.data.sources has 'embedded:{argument}', but embedded: takes no"
            " argument; write embedded:"
        )
    for name, found in embedded.documents():
        stream = iter((*found, None))
        yield from assemble(stream, name, data_config, counts, is_split=True)


_DATASET_READERS: dict[
    str, Callable[[str, DataConfig, collections.Counter[str]], Iterator[Document]]
] = {"embedded": _embedded, "tfds": _tfds}
# Called with a path and the argument of the spec.
_FILE_READERS: dict[str, Callable[..., Iterator[Document]]] = {
    "text": _text,
    "files": _files,
    "jsonl": json_lines.read_jsonl,
    "parquet": parquet.read_parquet,
    "hf": parquet.read_parquet,
    "wikiextractor": json_lines.read_wikiextractor,
}
