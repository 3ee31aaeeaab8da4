"""Tests of bert_jax.data.sources.layout; test_sources.py tests it on whole files."""

import textwrap

import pytest

from bert_jax.data.sources import layout

ONE = "A sentence stands here."
TWO = "A sentence stands here. Another one follows it."


@pytest.mark.parametrize(
    "lines, expected, is_split",
    [
        (
            ["# Title", TWO, "", TWO, "# Next", ONE],
            [TWO, "", TWO, None, ONE],
            False,
        ),
        ([ONE, ONE, "", ONE, ONE], [ONE, ONE, None, ONE, ONE], True),
        ([TWO, "", TWO, "", TWO], [TWO, "", TWO, "", TWO], False),
        ([TWO, TWO, "", TWO], [TWO, TWO, None, TWO], False),
    ],
    ids=[
        "headings",
        "sentence per line",
        "blank line after each paragraph",
        "paragraph per line",
    ],
)
def test_layout_determines_the_ends_of_documents(lines, expected, is_split):
    stream, found_is_split = layout.documents_of(iter(lines))
    assert (list(stream), found_is_split) == (expected, is_split)


def test_one_document_replaces_headings_and_ornaments_by_blank_lines():
    lines = ["# Chapter 1", TWO, "* * *", TWO, "## Part", ONE]
    found = list(layout.one_document(iter(lines)))
    assert found == ["", TWO, "", TWO, "", ONE]


def test_a_wrapped_file_is_one_document():
    words = ["tide" * (1 + i * 7 % 3) for i in range(200)]
    text = " ".join(words)
    lines = [*textwrap.wrap(text, 72), "", *textwrap.wrap(text, 72)]
    stream, is_split = layout.documents_of(iter(lines))
    assert list(stream) == lines and not is_split
