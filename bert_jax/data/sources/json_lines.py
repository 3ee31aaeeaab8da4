"""Reads documents from JSON Lines, and from the output of WikiExtractor."""

import collections
import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any
from xml.sax import saxutils

from bert_jax.data.sources import lines
from bert_jax.data.sources.kind import FileSource, InputFile
from bert_jax.data.sources.lines import Reading
from bert_jax.data.sources.plain import plain_lines
from bert_jax.data.sources.unwrap import Stream
from bert_jax.errors import ConfigError

# The maximum ratio of the length of a JSON line to the length of its text: escapes and
# other fields take space.
JSON_OVERHEAD = 4


class JsonLines(FileSource):
    """JSON Lines: one document per line, in a field that the spec names."""

    name = "jsonl"
    form = "jsonl:GLOB#field"
    has_field = True

    def __init__(self, spec: str):
        super().__init__(spec)
        if not self.field:
            raise ConfigError(
                f"config.data.sources has {spec!r}, which names no field; write"
                f" {spec.rstrip('#')}#text (or the field that contains the text)"
            )

    def parts(self, file: InputFile, max_bytes: int) -> Iterator[lines.Part]:
        if not lines.is_divisible(file.path):
            yield lines.WHOLE
            return
        number = max(1, round(file.num_bytes / max_bytes))
        ends = (file.num_bytes * i // number for i in range(number + 1))
        yield from itertools.pairwise(ends)

    def stream(self, path, part, reading):
        for where, row in objects(path, reading, part):
            yield from text_of(row, self.field, where, reading).splitlines()
            yield None


def objects(
    path: str, reading: Reading, part: lines.Part
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ("file:line", object) for every non-blank line."""
    limit = JSON_OVERHEAD * reading.max_document_bytes
    of_objects = dataclasses.replace(reading, max_line_bytes=limit)
    numbered = lines.read(path, of_objects, part)
    for number, parts in itertools.groupby(numbered, key=lambda part: part[0]):
        line, *more = [part for _, part in itertools.islice(parts, 2)]
        if more:
            reading.counts["json_lines_too_long"] += 1
        # With invalid_utf8="skip" the line is dropped even if another field is invalid.
        elif not lines.is_utf8(line):
            reading.counts["documents_not_utf8"] += 1
        elif line.strip():
            where = lines.where(path, number, part[0])
            try:
                yield where, parse(line, where)
            except ConfigError as error:
                reading.reject(error)


def parse(line: str, where: str) -> dict[str, Any]:
    """Returns the object of a line; NaN, which is no JSON but written, becomes None."""
    try:
        value = json.loads(line, parse_constant=lambda _: None)
        if isinstance(value, dict):
            return value
        problem = f"is {type(value).__name__}, not an object"
    except json.JSONDecodeError as error:
        problem = f"is not JSON ({error.msg} at column {error.colno})"
    except RecursionError:
        problem = "is nested too deeply"
    except ValueError:
        problem = "has an integer of too many digits"
    raise ConfigError(
        f"{where} {problem}; write one JSON object on each line, without a list around"
        " them"
    )


def text_of(row: dict[str, Any], field: str, where: str, reading: Reading) -> str:
    """Returns the text at a dotted path, "" if it is null or after an error."""
    value: Any = row
    for name in (field,) if field in row else field.split("."):
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(value) if isinstance(value, dict) else "no fields"
            problem = f"no field {field!r} (instead of {name!r} it has: {names})"
            break
        value = value[name]
    else:
        if value is None or isinstance(value, str):
            # With "?" for lone surrogates, which escapes can contain.
            return (value or "").encode("utf-8", "replace").decode()
        kind, names = type(value).__name__, ", ".join(row)
        problem = f"{kind} in the field {field!r}, not text (fields: {names})"
    error = ConfigError(
        f"{where} has {problem}; name a field of text in config.data.sources as #field"
        " or #outer.inner"
    )
    reading.reject(error)
    return ""


# -------------------------------------------------------------------- WikiExtractor

_DOC_START = re.compile(r"<doc\s[^>]*>\s*$")


class WikiExtractor(FileSource):
    """Files written by WikiExtractor; a document is an article without its title."""

    name = "wikiextractor"
    form = "wikiextractor:GLOB"

    def stream(self, path, part, reading):
        # The file is read twice; the first pass finds the format and is not counted.
        uncounted = dataclasses.replace(reading, counts=collections.Counter())
        source_lines = plain_lines(path, uncounted)
        first = next((line for line in source_lines if line.strip()), "")
        if first.lstrip().startswith("{"):
            stream = _json_stream(path, reading)
        else:
            stream = _element_stream(plain_lines(path, reading), path, self.pattern)
        for line in stream:  # with the HTML entities that it writes by default
            yield line and saxutils.unescape(line, {"&quot;": '"'})


def _json_stream(path: str, reading: Reading) -> Stream:
    for where, article in objects(path, reading, lines.WHOLE):
        text_lines = text_of(article, "text", where, reading).splitlines()
        # Only some versions of WikiExtractor repeat the title on the first line.
        yield from text_lines[article.get("title") in text_lines[:1] :]
        yield None


def _element_stream(source_lines: Iterator[str], path: str, pattern: str) -> Stream:
    """Yields the lines between <doc ...> and </doc>, without the title."""
    is_inside = has_documents = is_title = has_text = False
    for line in source_lines:
        has_text = has_text or bool(line.strip())
        if line.startswith("<doc") and _DOC_START.match(line):
            is_inside = has_documents = is_title = True
        elif line.strip() == "</doc>":
            is_inside = False
            yield None
        elif is_inside and not is_title:
            yield line
        elif is_inside and line.strip():  # the first line repeats the title
            is_title = False
    if has_text and not has_documents:
        raise ConfigError(
            f"{path} has no <doc ...> line, so it is not WikiExtractor output;"
            f" for plain text, write text:{pattern}"
        )
