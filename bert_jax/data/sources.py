"""Where documents come from: a source spec -> documents as they are, uncleaned.

embedded:                       documentation inside this Python and our dependencies
text:GLOB                       plain text; see text_layout.py for how it is read
files:GLOB                      plain text, each file a document
jsonl:GLOB#field.path           a JSON object a line, the document in one field
wikiextractor:GLOB              WikiExtractor's files, <doc ...> ... </doc> or JSON
tfds:NAME[:SPLIT][#field.path]  a text dataset of TensorFlow Datasets

Reading is input and output, decoding, finding where documents end and joining
hard-wrapped lines; cleaning.py splits the documents into sentences.
"""

import collections
import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data import (
    embedded,
    lines,
    source_files,
    text_layout,
    tfds_splits,
    wrapped_lines,
)
from bert_jax.data.wrapped_lines import Stream
from bert_jax.errors import ConfigError

# A JSON line may be so much longer than the text in it: escapes, other fields.
JSON_OVERHEAD = 4

_DOC_START = re.compile(r"<doc\s[^>]*>\s*$")


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    lines: tuple[str, ...]  # without line ends; none blank
    is_split: bool  # whether the lines are sentences; else they are paragraphs
    origin: str  # file or dataset, and the number of the document in it

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of the text in UTF-8, and one a line."""
        return sum(len(line.encode(errors="replace")) + 1 for line in self.lines)


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
        raise source_files.no_text(source)


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
    kind, argument = source_files.parse(source)
    if kind not in source_files.FILE_KINDS:
        yield from _DATASET_READERS[kind](argument, data_config, counts)
        return
    pattern = source_files.pattern(kind, argument)
    for path in source_files.paths(pattern) if paths is None else paths:
        yield from _FILE_READERS[kind](path, argument, data_config, counts)


def _assemble(
    stream: Stream,
    name: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    *,
    is_split: bool = False,
) -> Iterator[Document]:
    """Yields the documents of a stream of lines, long ones in parts.

    Hard-wrapped lines are joined first, unless the lines are sentences.
    """
    if not is_split:
        stream = wrapped_lines.unwrapped(stream, counts)
    found: list[str] = []
    ordinal, size = 1, 0
    for line in stream:
        if line is None:
            yield Document(tuple(found), is_split, f"{name}, document {ordinal}")
            found, size, ordinal = [], 0, ordinal + 1
        elif line and not line.isspace():
            num_bytes = lines.num_bytes(line) + 1
            if found and size + num_bytes > data_config.max_document_bytes:
                counts["documents_cut"] += 1
                yield Document(tuple(found), is_split, f"{name}, document {ordinal}")
                found, size = [], 0
            found.append(line)
            size += num_bytes
    if found:
        yield Document(tuple(found), is_split, f"{name}, document {ordinal}")


# ------------------------------------------------------------------- plain text


def _text(
    path: str, _: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    stream, is_split = text_layout.documents_of(_plain_lines(path, data_config, counts))
    yield from _assemble(stream, path, data_config, counts, is_split=is_split)


def _one_a_file(
    path: str, _: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    stream = text_layout.one_document(_plain_lines(path, data_config, counts))
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


def _jsonl(
    path: str, argument: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    _, _, field = argument.partition("#")
    stream = _json_stream(path, field, data_config, counts)
    yield from _assemble(stream, path, data_config, counts)


def _json_stream(
    path: str, field: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Stream:
    for where, found in _json_objects(path, data_config, counts):
        yield from _field_of(found, field, where, counts).splitlines()
        yield None


def _json_objects(
    path: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields "file:line" and the object of every line that is not blank."""
    limit = JSON_OVERHEAD * data_config.max_document_bytes
    numbered = lines.read(path, limit, data_config.invalid_utf8, counts)
    for number, parts in itertools.groupby(numbered, key=lambda part: part[0]):
        line, *more = [part for _, part in itertools.islice(parts, 2)]
        if more:
            counts["json_lines_too_long"] += 1
        elif not lines.is_utf8(line):  # "skip", and no object is to hide it
            counts["documents_not_utf8"] += 1
        elif line.strip():
            where = f"{path}:{number}"
            try:
                found = _json_object(line, where)
            except ConfigError as error:
                lines.reject(counts, error)
            else:
                yield where, found


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
        problem = f"is {type(found).__name__}, not an object"
    except json.JSONDecodeError as error:
        found, problem = None, f"is not JSON ({error.msg} at column {error.colno})"
    except RecursionError:
        found, problem = None, "is nested too deeply"
    if not isinstance(found, dict):
        raise ConfigError(f"{where} {problem}; each line must be a JSON object")
    return found


def _field_of(
    found: dict[str, Any], field: str, where: str, counts: collections.Counter[str]
) -> str:
    """Returns the text at a dotted path of an object, "" when it was rejected.

    Raises:
      ConfigError: when there is none, with the names that are there; see
        `lines.reject`.
    """
    value: Any = found
    for name in (field,) if field in found else field.split("."):
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(value) if isinstance(value, dict) else "no fields"
            problem = (
                f"{where} has no field {field!r}; at {name!r} there is: {names}; name"
                " the field in config.data.sources as #field or #outer.inner"
            )
            lines.reject(counts, ConfigError(problem))
            return ""
        value = value[name]
    if not isinstance(value, str):
        problem = (
            f"{where} has {type(value).__name__} in the field {field!r}, not text; its"
            f" fields are {', '.join(found)}"
        )
        lines.reject(counts, ConfigError(problem))
        return ""
    return lines.whole_characters(value)


def _wikiextractor(
    path: str, pattern: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    # The file is opened twice, so the first look counts nothing.
    source_lines = _plain_lines(path, data_config, collections.Counter())
    first = next((line for line in source_lines if line.strip()), "")
    if first.lstrip().startswith("{"):
        stream = _wiki_json_stream(path, data_config, counts)
    else:
        source_lines = _plain_lines(path, data_config, counts)
        stream = _wiki_stream(source_lines, path, pattern)
    unescaped = (line and _unescaped(line) for line in stream)
    yield from _assemble(unescaped, path, data_config, counts)


def _wiki_json_stream(
    path: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Stream:
    for where, found in _json_objects(path, data_config, counts):
        text_lines = _field_of(found, "text", where, counts).splitlines()
        # Some versions repeat the title on the first line, some do not.
        yield from text_lines[found.get("title") in text_lines[:1] :]
        yield None


def _wiki_stream(source_lines: Iterator[str], path: str, pattern: str) -> Stream:
    """Yields the lines between <doc ...> and </doc>, without the title."""
    is_inside = found = is_title = has_text = False
    for line in source_lines:
        has_text = has_text or bool(line.strip())
        if line.startswith("<doc") and _DOC_START.match(line):
            is_inside = found = is_title = True
        elif line.strip() == "</doc>":
            is_inside = False
            yield None
        elif is_inside and not is_title:
            yield line
        elif is_inside and line.strip():  # the first line repeats the title
            is_title = False
    if has_text and not found:
        raise ConfigError(
            f"{path} has no <doc ...> line; is it WikiExtractor output?"
            f" For plain text write text:{pattern}"
        )


def _unescaped(line: str) -> str:
    """Undoes what WikiExtractor does to text by default; & comes last."""
    if "&" not in line:
        return line
    for entity, character in (("lt", "<"), ("gt", ">"), ("quot", '"'), ("amp", "&")):
        line = line.replace(f"&{entity};", character)
    return line


# ------------------------------------------------------------- TensorFlow Datasets


def _tfds(
    argument: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    named, separator, field = argument.partition("#")
    name, split = tfds_splits.name_and_split(named)
    if not name:
        raise ConfigError(
            f"config.data.sources has 'tfds:{argument}';"
            " write tfds:NAME[:SPLIT][#field]"
        )
    split = split or "train"
    builder = tfds_splits.builder(name, "config.data.sources")
    path = _text_field(name, builder.info.features or {}, field if separator else None)
    dataset = tfds_splits.dataset(builder, split, "config.data.sources")

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
    "jsonl": _jsonl,
    "wikiextractor": _wikiextractor,
}
