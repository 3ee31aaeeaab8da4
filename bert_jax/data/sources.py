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
import glob
import importlib.metadata
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bert_jax import storage
from bert_jax.config import ConfigError, DataConfig
from bert_jax.data import embedded, lines, text_layout, tfds_splits, wrapped_lines
from bert_jax.data.wrapped_lines import Stream

# A JSON line may be so much longer than the text in it: escapes, other fields.
JSON_OVERHEAD = 4
# gzip leaves 36% of English novels, bzip2 26% (measured on 28 MB of them).
COMPRESSED_RATIO = 3

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
        raise no_text(source)


def read(
    source: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    """As `documents`, but of a part of a source, which may be without text."""
    kind, argument = _parse(source)
    for document in _READERS[kind](argument, data_config, counts):
        if data_config.invalid_utf8 == "skip":
            if not all(map(lines.is_utf8, document.lines)):
                counts["documents_not_utf8"] += 1
                continue
        yield document


def no_text(source: str) -> ConfigError:
    """Returns what to raise when there is no text in any document of a source."""
    return ConfigError(f"config.data.sources: no text in {_described(source)}")


def check(specs: tuple[str, ...]) -> None:
    """Raises ConfigError when a spec is malformed or names no file."""
    for spec in specs:
        kind, argument = _parse(spec)
        if kind in _FILE_KINDS:
            _files(_pattern(kind, argument))
        if kind == "jsonl" and not argument.partition("#")[2]:
            raise ConfigError(
                f"config.data.sources has {spec!r} without a field;"
                f" write {spec}#text (or the field that holds the text)"
            )


def size_bytes(specs: tuple[str, ...]) -> int | None:
    """Returns about how much text local files hold, None when a source is not local."""
    total = 0
    for spec in specs:
        kind, argument = _parse(spec)
        if kind in _FILE_KINDS:
            pattern = _pattern(kind, argument)
            if "://" in pattern:
                return None
            for path in _files(pattern):
                ratio = COMPRESSED_RATIO if path.endswith((".gz", ".bz2")) else 1
                total += ratio * os.path.getsize(path)
        elif kind != "embedded":
            return None
    return total


def by_file(spec: str) -> list[str]:
    """Returns specs that together give the documents of one, a spec a file."""
    kind, argument = _parse(spec)
    if kind not in _FILE_KINDS:
        return [spec]
    pattern = _pattern(kind, argument)
    field = argument.removeprefix(pattern)
    return [f"{kind}:{_escaped(path)}{field}" for path in _files(pattern)]


def _escaped(path: str) -> str:
    """Returns a pattern that only this path matches; buckets have their own rules."""
    return path if "://" in path else glob.escape(path)


def fingerprint(specs: tuple[str, ...]) -> list[list[Any]]:
    """Returns JSON values that change when the text behind the sources does.

    Of files path, size and time of change, of the embedded text the versions of what it
    stands in. A dataset is named with its version by who wants to be sure.
    """
    found: list[list[Any]] = []
    for spec in specs:
        kind, argument = _parse(spec)
        if kind in _FILE_KINDS:
            found += [_stat(path) for path in _files(_pattern(kind, argument))]
        elif kind == "embedded":
            installed = importlib.metadata.packages_distributions()
            names = {name for p in embedded.PACKAGES for name in installed.get(p, [])}
            versions = [f"{n} {importlib.metadata.version(n)}" for n in sorted(names)]
            found.append([sys.version, *versions])
    return found


def _stat(path: str) -> list[Any]:
    return [path if "://" in path else os.path.abspath(path), *storage.stat(path)]


def _parse(spec: str) -> tuple[str, str]:
    kind, colon, argument = spec.partition(":")
    if kind not in _READERS or not colon or not (argument or kind == "embedded"):
        raise ConfigError(
            f"config.data.sources has {spec!r}; a source is one of embedded:,"
            " text:GLOB, files:GLOB, jsonl:GLOB#field, wikiextractor:GLOB,"
            " tfds:NAME[:SPLIT][#field]"
        )
    return kind, argument


def _pattern(kind: str, argument: str) -> str:
    return argument.partition("#")[0] if kind == "jsonl" else argument


def _files(pattern: str) -> list[str]:
    paths = storage.glob(pattern)
    if "://" not in pattern:
        found, paths = paths, list(filter(os.path.isfile, paths))
        if not paths and found:
            raise ConfigError(
                f"config.data.sources: {pattern!r} is a directory; to read the files"
                f" in it write {pattern.rstrip('/')}/**/*.txt, for example"
            )
    if not paths:
        raise ConfigError(
            f"config.data.sources: no file matches {pattern!r}"
            f" (looked from {os.getcwd()})"
        )
    return sorted(paths)


def _described(source: str) -> str:
    """Returns the source with the number and names of its files."""
    kind, argument = _parse(source)
    if kind not in _FILE_KINDS:
        return repr(source)
    paths = _files(_pattern(kind, argument))
    names = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
    return f"{source!r}: 0 documents in {len(paths)} file(s), {names}"


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
    pattern: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    for path in _files(pattern):
        stream, is_split = text_layout.documents_of(
            _plain_lines(path, data_config, counts)
        )
        yield from _assemble(stream, path, data_config, counts, is_split=is_split)


def _one_a_file(
    pattern: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    for path in _files(pattern):
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
    argument: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    pattern, _, field = argument.partition("#")
    for path in _files(pattern):
        stream = _json_stream(path, field, data_config, counts)
        yield from _assemble(stream, path, data_config, counts)


def _json_stream(
    path: str, field: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Stream:
    for where, found in _json_objects(path, data_config, counts):
        yield from _field_of(found, field, where).splitlines()
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
            yield f"{path}:{number}", _json_object(line, f"{path}:{number}")


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


def _field_of(found: dict[str, Any], field: str, where: str) -> str:
    """Returns the text at a dotted path of an object.

    Raises:
      ConfigError: when there is none, with the names that are there.
    """
    value: Any = found
    for name in (field,) if field in found else field.split("."):
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(value) if isinstance(value, dict) else "no fields"
            raise ConfigError(
                f"{where} has no field {field!r}; at {name!r} there is: {names}; name"
                " the field in config.data.sources as #field or #outer.inner"
            )
        value = value[name]
    if not isinstance(value, str):
        raise ConfigError(
            f"{where} has {type(value).__name__} in the field {field!r}, not text; its"
            f" fields are {', '.join(found)}"
        )
    return lines.whole_characters(value)


def _wikiextractor(
    pattern: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    for path in _files(pattern):
        # Opened twice, so nothing of the first look is counted.
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
        text_lines = _field_of(found, "text", where).splitlines()
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


_READERS: dict[
    str, Callable[[str, DataConfig, collections.Counter[str]], Iterator[Document]]
] = {
    "embedded": _embedded,
    "text": _text,
    "files": _one_a_file,
    "jsonl": _jsonl,
    "wikiextractor": _wikiextractor,
    "tfds": _tfds,
}
_FILE_KINDS = ("text", "files", "jsonl", "wikiextractor")
