"""Reads documents from a field of JSON Lines files."""

import collections
import itertools
import json
from collections.abc import Iterator
from typing import Any

from bert_jax.config import DataConfig
from bert_jax.data.sources import formats, lines
from bert_jax.data.sources.kind import FileSource, InputFile
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
        if not formats.is_divisible(file.path):
            yield lines.WHOLE
            return
        number = max(1, round(file.num_bytes / max_bytes))
        for i in range(number):
            start = file.num_bytes * i // number
            yield start, file.num_bytes * (i + 1) // number

    def stream(self, path, part, data_config, counts):
        for where, found in objects(path, data_config, counts, part):
            yield from text_of(found, self.field, where, counts).splitlines()
            yield None


def objects(
    path: str,
    data_config: DataConfig,
    counts: collections.Counter[str],
    part: lines.Part,
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
    """Returns the object of a line; NaN, which is no JSON but written, becomes None."""
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


def text_of(
    found: dict[str, Any], field: str, where: str, counts: collections.Counter[str]
) -> str:
    """Returns the text at a dotted path, "" if it is null or after `lines.reject`."""
    value: Any = found
    for name in (field,) if field in found else field.split("."):
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(value) if isinstance(value, dict) else "no fields"
            problem = f"no field {field!r} (instead of {name!r} it has: {names})"
            break
        value = value[name]
    else:
        if value is None or isinstance(value, str):
            return lines.whole_characters(value or "")
        names = ", ".join(found)
        kind = type(value).__name__
        problem = f"{kind} in the field {field!r}, not text (fields: {names})"
    error = (
        f"{where} has {problem}; name a field of text in config.data.sources as #field"
        " or #outer.inner"
    )
    lines.reject(counts, ConfigError(error))
    return ""
