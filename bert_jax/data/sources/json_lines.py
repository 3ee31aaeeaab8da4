"""Reads documents from JSON Lines files and from WikiExtractor output."""

import collections
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from bert_jax.config import DataConfig
from bert_jax.data.sources import lines
from bert_jax.data.sources.document import Document, assemble
from bert_jax.data.sources.unwrap import Stream
from bert_jax.errors import ConfigError

# The maximum ratio of the length of a JSON line to the length of its text: escapes and
# other fields take space.
JSON_OVERHEAD = 4

_DOC_START = re.compile(r"<doc\s[^>]*>\s*$")


def read_jsonl(
    path: str,
    argument: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    part: lines.Part = lines.WHOLE,
) -> Iterator[Document]:
    """Yields one document per line of a JSON Lines file.

    Args:
      path: a JSON Lines file.
      argument: GLOB#field, the argument of the source spec.
      data_config: as for `sources.documents`.
      counts: as for `sources.documents`.
      part: the bytes in which the lines start that are read.
    """
    _, _, field = argument.partition("#")
    stream = _json_stream(path, field, data_config, counts, part)
    yield from assemble(stream, path, data_config, counts)


def _json_stream(
    path: str,
    field: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    part: lines.Part,
) -> Stream:
    for where, found in _json_objects(path, data_config, counts, part):
        yield from _field_of(found, field, where, counts).splitlines()
        yield None


def _json_objects(
    path: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    part: lines.Part = lines.WHOLE,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ("file:line", object) for every non-blank line."""
    limit = JSON_OVERHEAD * data_config.max_document_bytes
    numbered = lines.read(path, limit, data_config.invalid_utf8, counts, part)
    for number, parts in itertools.groupby(numbered, key=lambda part: part[0]):
        line, *more = [part for _, part in itertools.islice(parts, 2)]
        if more:
            counts["json_lines_too_long"] += 1
        # With invalid_utf8="skip" the line is dropped even if another field is invalid.
        elif not lines.is_utf8(line):
            counts["documents_not_utf8"] += 1
        elif line.strip():
            where = lines.where(path, number, part[0])
            try:
                found = parse(line, where)
            except ConfigError as error:
                lines.reject(counts, error)
            else:
                yield where, found


def parse(line: str, where: str) -> dict[str, Any]:
    """Returns the object of a line; NaN, which is no JSON but written, becomes None.

    Raises:
      ConfigError: when it is not a JSON object. The message names `where`.
    """
    try:
        found = json.loads(line, parse_constant=lambda _: None)
        problem = f"is {type(found).__name__}, not an object"
    except json.JSONDecodeError as error:
        found, problem = None, f"is not JSON ({error.msg} at column {error.colno})"
    except RecursionError:
        found, problem = None, "is nested too deeply"
    if not isinstance(found, dict):
        raise ConfigError(
            f"{where} {problem}; write one JSON object on each line, without a list"
            " around them"
        )
    return found


def _field_of(
    found: dict[str, Any], field: str, where: str, counts: collections.Counter[str]
) -> str:
    """Returns the text at a dotted path in an object, or "" if it was rejected.

    Raises:
      ConfigError: when the field is missing or not a string and `counts` does not
        collect errors; see `lines.reject`. The message lists the fields present.
    """
    value: Any = found
    for name in (field,) if field in found else field.split("."):
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(value) if isinstance(value, dict) else "no fields"
            problem = (
                f"{where} has no field {field!r} (instead of {name!r} it has: {names});"
                " name the field in config.data.sources as #field or #outer.inner"
            )
            lines.reject(counts, ConfigError(problem))
            return ""
        value = value[name]
    if value is None:  # an empty document, as in Parquet
        return ""
    if not isinstance(value, str):
        problem = (
            f"{where} has {type(value).__name__} in the field {field!r}, not text;"
            f" name a text field in config.data.sources (fields: {', '.join(found)})"
        )
        lines.reject(counts, ConfigError(problem))
        return ""
    return lines.whole_characters(value)


def read_wikiextractor(
    path: str, pattern: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Iterator[Document]:
    """Yields the documents of a WikiExtractor file, either <doc> elements or JSON.

    Args:
      path: a file written by WikiExtractor.
      pattern: the glob pattern of the source, for error messages.
      data_config: as for `sources.documents`.
      counts: as for `sources.documents`.
    """
    # The file is read twice; the first pass finds the format and must not be counted.
    source_lines = lines.plain_lines(path, data_config, collections.Counter())
    first = next((line for line in source_lines if line.strip()), "")
    if first.lstrip().startswith("{"):
        stream = _wiki_json_stream(path, data_config, counts)
    else:
        source_lines = lines.plain_lines(path, data_config, counts)
        stream = _wiki_stream(source_lines, path, pattern)
    unescaped = (line and _unescaped(line) for line in stream)
    yield from assemble(unescaped, path, data_config, counts)


def _wiki_json_stream(
    path: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Stream:
    for where, found in _json_objects(path, data_config, counts):
        text_lines = _field_of(found, "text", where, counts).splitlines()
        # Only some versions of WikiExtractor repeat the title on the first line.
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
            f"{path} has no <doc ...> line, so it is not WikiExtractor output;"
            f" for plain text, write text:{pattern}"
        )


def _unescaped(line: str) -> str:
    """Replaces the HTML entities that WikiExtractor writes by default."""
    if "&" not in line:
        return line
    # &amp; is replaced last, so that each entity is unescaped once.
    for entity, character in (("lt", "<"), ("gt", ">"), ("quot", '"'), ("amp", "&")):
        line = line.replace(f"&{entity};", character)
    return line
