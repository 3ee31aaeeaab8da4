"""Reads documents from the output of WikiExtractor, as <doc> elements or as JSON."""

import collections
import re
from collections.abc import Iterator
from xml.sax import saxutils

from bert_jax.config import DataConfig
from bert_jax.data.sources import json_lines, lines
from bert_jax.data.sources.kind import FileSource
from bert_jax.data.sources.unwrap import Stream
from bert_jax.errors import ConfigError

_DOC_START = re.compile(r"<doc\s[^>]*>\s*$")


class WikiExtractor(FileSource):
    """Files written by WikiExtractor; a document is an article without its title."""

    name = "wikiextractor"
    form = "wikiextractor:GLOB"

    def stream(self, path, part, data_config, counts):
        # The file is read twice; the first pass finds the format and is not counted.
        source_lines = lines.plain_lines(path, data_config, collections.Counter())
        first = next((line for line in source_lines if line.strip()), "")
        if first.lstrip().startswith("{"):
            stream = _json_stream(path, data_config, counts)
        else:
            source_lines = lines.plain_lines(path, data_config, counts)
            stream = _element_stream(source_lines, path, self.pattern)
        for line in stream:  # with the HTML entities that it writes by default
            yield line and saxutils.unescape(line, {"&quot;": '"'})


def _json_stream(
    path: str, data_config: DataConfig, counts: collections.Counter[str]
) -> Stream:
    for where, found in json_lines.objects(path, data_config, counts, lines.WHOLE):
        text_lines = json_lines.text_of(found, "text", where, counts).splitlines()
        # Only some versions of WikiExtractor repeat the title on the first line.
        yield from text_lines[found.get("title") in text_lines[:1] :]
        yield None


def _element_stream(source_lines: Iterator[str], path: str, pattern: str) -> Stream:
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
