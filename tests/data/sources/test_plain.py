"""Tests of bert_jax.data.sources.plain: documents of files, and refused files."""

import gzip
import textwrap

import pytest

from bert_jax.data.sources import plain
from bert_jax.errors import ConfigError
from tests.data.sources.test_sources import ONE_DOCUMENT_EACH, raw, read, write

KINDS = pytest.mark.parametrize("kind", ["text", "files"])


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
            "a.jsonl",
            '{"text": "' + "One. " * 2**18,
            "JSON Lines by its name; write jsonl:{path}#FIELD$",
        ),
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
        raw(f"{kind}:{path}")


@KINDS
@pytest.mark.parametrize(
    "text",
    ['<p align="center">\nLogo\n</p>\nOne.', "<3 One.", "{One} of [2].", "[1]", "{}"],
)
def test_text_with_a_few_brackets_is_plain(tmp_path, kind, text):
    path = tmp_path / "a.md"
    path.write_text(f"\n\n{text}\nTwo.")
    (document,) = raw(f"{kind}:{path}")
    assert document.lines == (*text.split("\n"), "Two.")


# ------------------------------------------------------------------- documents

MARKDOWN = """# First

One is first. Two is next.

Three.

## Second
Four. Five.
"""
# Section headings do not end a document and are not part of its text.
WIKITEXT = """ = First =

 One is first . Two is next .

 = = A section = =

 = = = Deeper = = =

 Three .
 = Q =
 Four . Five .
"""
# A line of two sentences stays whole if nine in ten lines hold one sentence.
LINES = [f"Line {i}" for i in range(18)] + ["Two here. In a line."]


@pytest.mark.parametrize(
    "text, documents",
    [
        (MARKDOWN, ONE_DOCUMENT_EACH),
        (
            WIKITEXT,
            [["One is first .", "Two is next .", "Three ."], ["Four .", "Five ."]],
        ),
        ("Zero.\n# One\nFirst. Second.", [["Zero."], ["First.", "Second."]]),
        (
            "One is first.\nTwo is next.\nThree.\n\n\nFour.\n Five.  \n",
            ONE_DOCUMENT_EACH,
        ),
        ("\n".join(LINES), [LINES]),
        # The blank lines do not make every paragraph a document.
        (
            "One is first. Two is next.\n\nThree.\n\nFour. Five.\n",
            [sum(ONE_DOCUMENT_EACH, [])],
        ),
        ("One is first. Two is next.\nThree.\n\nFour. Five.\n", ONE_DOCUMENT_EACH),
    ],
    ids=[
        *("markdown", "wikitext", "text before a heading", "sentence per line"),
        *("two sentences in a line", "paragraphs between blank lines", "running text"),
    ],
)
def test_layout_determines_the_ends_of_documents(tmp_path, text, documents):
    assert read("text", write(tmp_path / "a.txt", text)) == documents


@pytest.mark.parametrize("line", ["#hashtag", "a = b", "= = =", "== x ==", "####### x"])
def test_lines_that_resemble_headings_are_text(tmp_path, line):
    found = read("text", write(tmp_path / "a.txt", f"{line}\n\nText."))
    assert sum(map(len, found)) == 2


def test_a_wrapped_file_is_one_document():
    text = " ".join("tide" * (1 + i * 7 % 3) for i in range(200))
    lines = [*textwrap.wrap(text, 72), "", *textwrap.wrap(text, 72)]
    stream, is_split = plain.documents_of(iter(lines))
    assert list(stream) == lines and not is_split
