"""Tests of bert_jax.data.sources.plain: files that are not plain text are refused."""

import collections
import gzip
import re
import subprocess
import sys

import pytest

from bert_jax.data.sources import sources
from bert_jax.errors import ConfigError
from tests.conftest import make_config

KINDS = pytest.mark.parametrize("kind", ["text", "files"])


def read(spec):
    found = sources.documents(spec, make_config().data, collections.Counter())
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
    ],
)
def test_markup_and_json_are_errors(tmp_path, kind, name, content, message):
    path = tmp_path / name
    path.write_text(content)
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


@KINDS
@pytest.mark.parametrize(
    "name, content",
    [
        ("a b.csv", 'id,text\n1,"One, a ""word"".\nTwo."\n2,Three.\n'),
        ("a$HOME 'b'.csv", 'text\n"One, a ""word""."\nThree.\n'),
        ("a.csv.gz", 'text\n"One, a ""word"".\nTwo."\nThree.\n'),
        ("a.tsv", 'id\ttext\n1\tOne, a "word".\n2\tThree.\n'),
    ],
)
def test_a_table_is_an_error_that_names_a_working_command(
    tmp_path, monkeypatch, kind, name, content
):
    monkeypatch.chdir(tmp_path)
    pack = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / name).write_bytes(pack(content.encode()))
    with pytest.raises(ConfigError) as caught:
        read(f"{kind}:{name}")
    message, command = re.split(
        "; convert it: |, and write parquet", str(caught.value)
    )[:2]
    assert f"{name} is a table by its name" in message
    command = command.replace("python", sys.executable, 1)
    subprocess.run(["bash", "-c", command], check=True)
    first, second = read("parquet:table.parquet#text")
    assert first[0] == 'One, a "word".' and second == ("Three.",)
