"""Tests of bert_jax.data.sources.layout: the documents of whole files."""

import textwrap

import pytest

from bert_jax.data.sources import layout
from tests.data.sources.test_sources import ONE_DOCUMENT_EACH, read, write

TWO = "A sentence stands here. Another one follows it."
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


def test_one_document_replaces_headings_and_ornaments_by_blank_lines():
    lines = ["# Chapter 1", TWO, "* * *", TWO, "## Part"]
    assert list(layout.one_document(iter(lines))) == ["", TWO, "", TWO, ""]


def test_a_wrapped_file_is_one_document():
    text = " ".join("tide" * (1 + i * 7 % 3) for i in range(200))
    lines = [*textwrap.wrap(text, 72), "", *textwrap.wrap(text, 72)]
    stream, is_split = layout.documents_of(iter(lines))
    assert list(stream) == lines and not is_split
