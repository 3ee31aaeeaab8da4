"""Tests of bert_jax.data.corpus.encoding: cleaning and sentence splitting."""

import collections
import pickle
import unicodedata

import pytest

from bert_jax.data.corpus import encoding
from bert_jax.data.sources.document import Document
from tests.conftest import make_config


def clean(*lines, is_split=False, max_line_bytes=2**20):
    """Returns the sentences and the counts."""
    data = make_config(data__max_line_bytes=max_line_bytes).data
    counts = collections.Counter()
    document = Document(lines, is_split, "a.txt, document 1")
    return encoding.clean_sentences(document, data, counts), dict(counts)


def test_clean_text_is_only_split():
    lines = (
        "One is first. Two is next.",
        "Caf\u00e9\tau lait.",
        "\u4f60\u597d\u3002\u518d\u89c1",
    )
    expected = [
        "One is first.",
        "Two is next.",
        lines[1],
        "\u4f60\u597d\u3002",
        "\u518d\u89c1",
    ]
    assert clean(*lines) == (expected, {})


def test_sentences_are_kept_as_given():
    lines = (" Two here. In a line. ", "Dr. No")
    assert clean(*lines, is_split=True) == (["Two here. In a line.", "Dr. No"], {})


def test_all_controls_but_tab_are_dropped_and_counted():
    """Category Cc of unicodedata is the reference; lines contain no line ends."""
    controls = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) == "Cc"]
    controls = [c for c in controls if len(f"a{c}b".splitlines()) == 1]
    assert len(controls) == 65 - 8  # all but \n \v \f \r \x1c \x1d \x1e \x85
    for c in controls:
        found, counts = clean(f"a{c}b")
        expected = {"\t": "a\tb", "\x1f": "a b"}.get(c, "ab")
        assert found == [expected], repr(c)
        assert counts.get("control_characters_dropped", 0) == (expected == "ab")
    assert clean("\ufeffOne\ufeff.") == (["One."], {"control_characters_dropped": 2})


@pytest.mark.parametrize("form", ["NFD", "NFC"])
def test_characters_are_composed(form):
    text = "\u00c5ngstr\u00f6m and \ud55c\uad6d\uc5b4 and \u1eaf."
    found, counts = clean(unicodedata.normalize(form, text))
    assert found == [text]
    assert counts == ({"lines_composed": 1} if form == "NFD" else {})


@pytest.mark.parametrize("lines", [(), ("\x00\x01",), ("\u3000 \t",)])
def test_documents_without_text_are_counted(lines):
    found, counts = clean(*lines)
    assert found == []
    assert counts["documents_empty"] == 1


@pytest.mark.parametrize("is_split", [False, True])
def test_long_lines_are_cut_and_counted(is_split):
    words = [f"w{i}" for i in range(2000)]
    found, counts = clean(" ".join(words), is_split=is_split, max_line_bytes=1024)
    assert " ".join(found).split() == words
    assert max(map(len, found)) <= 1024
    assert counts == {"lines_cut": 1}


def test_documents_can_be_pickled():
    document = Document(("One.",), True, "a")
    assert pickle.loads(pickle.dumps(document)) == document
