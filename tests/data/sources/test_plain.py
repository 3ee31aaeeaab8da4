"""Tests of bert_jax.data.sources.plain: files that are not plain text are refused."""

import collections
import gzip

import pytest

from bert_jax.data.sources import sources
from bert_jax.errors import ConfigError
from tests.conftest import make_config

KINDS = pytest.mark.parametrize("kind", ["text", "files"])


def read(spec):
    found = sources.read(spec, make_config().data, collections.Counter())
    return [document.lines for document in found]


@KINDS
@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "a",
            "\n<!DOCTYPE html>\n<p>One.",
            "a is HTML, XML or SGML, and .* convert it",
        ),
        ("a.txt", " <html lang=en>One.", "is HTML, XML or SGML"),
        ("a.txt", '\ufeff<?xml version="1.0"?><TEI>', "is HTML, XML or SGML"),
        ("a", "<DOC>\n<TEXT>\nOne.", "is HTML, XML or SGML"),
        ("a", '<mediawiki xmlns="x">', "a dump of a wiki; extract .* wikiextractor:"),
        ("a", '<doc id="1" title="x">\nx\n', "WikiExtractor .* wikiextractor:{path}$"),
        ("a", '{"id": 1, "text": "One."}\n', "write jsonl:{path}#FIELD .*: id, text$"),
        ("a.json", '[\n {"id": 1}\n]', "is JSON; write one object per line"),
        (
            "a.csv",
            "id,text\n1,One.\n",
            "a.csv is a table by its name, .*parquet:GLOB#CO",
        ),
        ("a.TSV.gz", "id\ttext\n", "a table by its name, .* end its name in .txt$"),
    ],
)
def test_markup_json_and_tables_are_errors(tmp_path, kind, name, content, message):
    path = tmp_path / name
    pack = gzip.compress if name.endswith(".gz") else bytes
    path.write_bytes(pack(content.encode()))
    with pytest.raises(ConfigError, match=message.format(path=path)):
        read(f"{kind}:{path}")


@KINDS
@pytest.mark.parametrize(
    "text",
    ['<p align="center">\nLogo\n</p>\nOne.', "<3 One.", "{One} of [2].", "[1]", "{}"],
)
def test_text_with_a_few_brackets_is_plain(tmp_path, kind, text):
    path = tmp_path / "a.md"
    path.write_text(f"\n\n{text}\nTwo.")
    assert read(f"{kind}:{path}") == [(*text.split("\n"), "Two.")]
