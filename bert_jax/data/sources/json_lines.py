"""Reads documents from JSON lines and from the output of WikiExtractor."""

import collections
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from bert_jax.config import DataConfig
from bert_jax.data.sources import lines, sources
from bert_jax.data.sources.document import Document, _assemble
from bert_jax.data.sources.unwrap import Stream
from bert_jax.errors import ConfigError

# A JSON line may be so much longer than the text in it: escapes, other fields.
JSON_OVERHEAD = 4

_DOC_START = re.compile(r"<doc\s[^>]*>\s*$")


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
    source_lines = sources._plain_lines(path, data_config, collections.Counter())
    first = next((line for line in source_lines if line.strip()), "")
    if first.lstrip().startswith("{"):
        stream = _wiki_json_stream(path, data_config, counts)
    else:
        source_lines = sources._plain_lines(path, data_config, counts)
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
