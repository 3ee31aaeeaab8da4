"""Tests of bert_jax.data.sources: every kind of source and what it refuses."""

import itertools
import json

import numpy as np
import pytest
import tensorflow_datasets as tfds

from bert_jax.config import ConfigError
from bert_jax.data import sources


def read(kind, path, suffix=""):
    return list(sources.documents(f"{kind}:{path}{suffix}"))


def text_documents(text):
    return list(sources.text_documents(text.split("\n")))


def write(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


# ------------------------------------------------------------------------ text

ONE_DOCUMENT_EACH = [["One is first.", "Two is next.", "Three."], ["Four.", "Five."]]


def test_layout_markdown_headings():
    text = """# First

One is first. Two is next.

Three.

## Second
Four. Five.
"""
    assert text_documents(text) == ONE_DOCUMENT_EACH


def test_layout_wikitext_titles():
    """Section headings neither end a document nor are text of it."""
    text = """ = First =
 
 One is first . Two is next .
 
 = = A section = =
 
 = = = Deeper = = =
 
 Three .
 = Second one =
 Four . Five .
"""
    assert text_documents(text) == [
        ["One is first .", "Two is next .", "Three ."],
        ["Four .", "Five ."],
    ]


def test_wikitext_title_of_one_character():
    text = " = Q = \n \n One . Two .\n = Z = \n \n Three . Four .\n"
    assert text_documents(text) == [["One .", "Two ."], ["Three .", "Four ."]]


def test_text_before_the_first_heading_is_a_document():
    assert text_documents("Zero.\n# One\nFirst. Second.") == [
        ["Zero."],
        ["First.", "Second."],
    ]


@pytest.mark.parametrize("line", ["#hashtag", "a = b", "= = =", "== x ==", "####### x"])
def test_lines_that_are_no_headings(line):
    assert sum(map(len, text_documents(f"{line}\n\nText."))) == 2


def test_layout_a_sentence_a_line():
    text = "One is first.\nTwo is next.\nThree.\n\n\nFour.\n Five.  \n"
    assert text_documents(text) == ONE_DOCUMENT_EACH


def test_a_sentence_a_line_is_kept_as_given():
    """Lines are not split again: nine in ten hold one sentence by the splitter."""
    lines = [f"Line {i}" for i in range(18)] + ["Two here. In a line."]
    assert text_documents("\n".join(lines)) == [lines]


def test_layout_a_paragraph_a_line_with_blank_lines_between():
    """One group per line would make every paragraph a document of its own."""
    text = "One is first. Two is next.\n\nThree.\n\nFour. Five.\n"
    assert text_documents(text) == [sum(ONE_DOCUMENT_EACH, [])]


def test_layout_running_text_with_a_blank_line_between_documents():
    text = "One is first. Two is next.\nThree.\n\nFour. Five.\n"
    assert text_documents(text) == ONE_DOCUMENT_EACH


def test_empty_file_has_no_sentences():
    assert sum(map(len, text_documents(""))) == 0


def test_text_reads_files_in_order_of_name_with_any_line_end(tmp_path):
    """A byte order mark, CRLF and subdirectories under ** are all ordinary."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_bytes(b"Four.\r\nFive.\r\n")
    (tmp_path / "a.txt").write_bytes(
        b"\xef\xbb\xbfOne is first.\r\nTwo is next.\r\nThree.\r\n"
    )
    (tmp_path / "ignored.md").write_text("No.")
    assert read("text", tmp_path / "**" / "*.txt") == ONE_DOCUMENT_EACH


def test_text_that_is_not_utf8(tmp_path):
    path = write(tmp_path / "latin.txt", "caf\u00e9", "latin-1")
    with pytest.raises(ConfigError, match="latin.txt is not UTF-8"):
        read("text", path)


# ----------------------------------------------------------------------- jsonl


def test_jsonl(tmp_path):
    objects = [
        {"id": 1, "body": "One is first. Two is next.\nThree."},
        {"id": 2, "body": ""},
        {"id": 3, "body": "Four. Five."},
    ]
    path = tmp_path / "x.jsonl"
    write(path, "\n\n".join(map(json.dumps, objects)))
    first, second = ONE_DOCUMENT_EACH
    assert read("jsonl", path, "#body") == [first, [], second]


@pytest.mark.parametrize(
    "line",
    ['{"text": "a"}', '{"body": 3}', '{"body": null}', "[1]", "{", "3", '"body"'],
)
def test_jsonl_line_without_the_field(tmp_path, line):
    path = write(tmp_path / "x.jsonl", '{"body": "Fine."}\n' + line)
    with pytest.raises(ConfigError, match="x.jsonl:2 .*'body'"):
        read("jsonl", path, "#body")


# --------------------------------------------------------------- wikiextractor


def test_wikiextractor(tmp_path):
    """The title line is not text; a redirect has no text and stays empty."""
    text = """<doc id="1" url="https://x.org/wiki?curid=1" title="First">
First

One is first. Two is next.

Three.

</doc>
<doc id="2" url="https://x.org/wiki?curid=2" title="A redirect">
A redirect


</doc>
<doc id="3" url="" title="Second">
Second
Four. Five.
</doc>
"""
    first, second = ONE_DOCUMENT_EACH
    assert read("wikiextractor", write(tmp_path / "wiki_00", text)) == [
        first,
        [],
        second,
    ]


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_wikiextractor_file_that_ends_inside_a_document(tmp_path, end):
    text = """<doc id="1" url="" title="First">
First
One is first. Two is next.
Three.
</doc>
<doc id="2" url="" title="Second">
Second
Four. Five."""
    path = write(tmp_path / "wiki_00", text + end)
    assert read("wikiextractor", path) == ONE_DOCUMENT_EACH


def test_wikiextractor_of_another_file(tmp_path):
    path = write(tmp_path / "plain.txt", "One.\nTwo.\n")
    with pytest.raises(ConfigError, match="plain.txt has no <doc"):
        read("wikiextractor", path)


# ------------------------------------------------------------------------ tfds


class TinyBertTexts(tfds.core.GeneratorBasedBuilder):
    """Registers itself, so that tfds.builder("tiny_bert_texts") finds it."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"body": tfds.features.Text(), "n": tfds.features.Scalar(np.int64)}
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(20):
            yield i, {"body": f"Text {i} begins. It goes on.\nCaf\u00e9.", "n": i}


@pytest.fixture
def tfds_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    return tmp_path


def test_tfds(tfds_directory):
    found = read("tfds", "tiny_bert_texts", "#body")
    expected = [[f"Text {i} begins.", "It goes on.", "Caf\u00e9."] for i in range(20)]
    assert sorted(found) == sorted(expected)
    assert (tfds_directory / "tiny_bert_texts" / "1.0.0").is_dir()
    # Prepared now: read again, in the same order.
    assert read("tfds", "tiny_bert_texts", "#body") == found


def test_tfds_without_the_field(tfds_directory):
    with pytest.raises(ConfigError, match="no field 'text'; it has body, n"):
        read("tfds", "tiny_bert_texts", "#text")


def test_tfds_with_a_field_of_numbers(tfds_directory):
    with pytest.raises(ConfigError, match="field 'n' of tiny_bert_texts is not text"):
        read("tfds", "tiny_bert_texts", "#n")


def test_tfds_without_the_dataset(tfds_directory):
    with pytest.raises(ConfigError, match="no 'no_such_tiny_texts'"):
        read("tfds", "no_such_tiny_texts", "#text")


# -------------------------------------------------------------------- embedded


def test_embedded_gives_hundreds_of_documents_of_prose():
    documents = list(itertools.islice(sources.documents("embedded:"), 400))
    assert len(documents) == 400
    assert sum(len(document) >= 2 for document in documents) > 200
    words = [len(s.split()) for document in documents for s in document]
    assert min(words) >= 3
    assert 8 < np.mean(words) < 40


def test_embedded_is_the_same_every_time():
    first, second = (
        list(itertools.islice(sources.documents("embedded:"), 150)) for _ in range(2)
    )
    assert first == second


def test_embedded_takes_no_argument():
    with pytest.raises(ConfigError, match="'all'"):
        next(sources.documents("embedded:all"))


# ----------------------------------------------------------------- every source


@pytest.mark.parametrize("spec", ["", "text", "text:", "txt:a.txt", "a.txt", "tfds:"])
def test_unknown_kind(spec):
    with pytest.raises(ConfigError, match=f"has '{spec}'; a source is one of"):
        next(sources.documents(spec))
    with pytest.raises(ConfigError, match=f"has '{spec}'; a source is one of"):
        sources.check((spec,))


@pytest.mark.parametrize("kind", ["text", "jsonl", "wikiextractor"])
def test_no_file_matches(tmp_path, kind):
    spec = f"{kind}:{tmp_path}/none*#text"
    with pytest.raises(ConfigError, match=r"no file matches '.*/none\*"):
        sources.check((spec,))
    with pytest.raises(ConfigError, match=r"no file matches '.*/none\*"):
        next(sources.documents(spec))


@pytest.mark.parametrize("kind", ["text", "jsonl", "wikiextractor"])
def test_a_directory_is_not_a_file(tmp_path, kind):
    with pytest.raises(ConfigError, match="no file matches"):
        sources.check((f"{kind}:{tmp_path}#text",))


def test_check_asks_for_the_field(tmp_path):
    path = write(tmp_path / "x.jsonl", "{}")
    for spec in (f"jsonl:{path}", "tfds:tiny_bert_texts"):
        with pytest.raises(ConfigError, match=f"write {spec}#text"):
            sources.check((spec,))


def test_check_passes_what_can_be_read(tmp_path):
    path = write(tmp_path / "x.txt", "One.")
    sources.check(("embedded:", f"text:{path}", f"jsonl:{path}#a", "tfds:any#text"))


def test_check_and_size_read_the_pattern_as_the_reader_does(tmp_path):
    """Only jsonl and tfds have a field: elsewhere # is a letter of the name."""
    path = write(tmp_path / "c#.txt", "One.\nTwo.")
    assert read("text", path) == [["One.", "Two."]]
    sources.check((f"text:{path}",))
    assert sources.size_bytes((f"text:{path}",)) == 9


def test_size_of_local_sources(tmp_path):
    for name, size in (("a.txt", 10), ("b.txt", 5)):
        write(tmp_path / name, "x" * size)
    text, jsonl = f"text:{tmp_path}/*.txt", f"jsonl:{tmp_path}/a.txt#text"
    assert sources.size_bytes((text, "embedded:", jsonl)) == 25
    assert sources.size_bytes((text, "tfds:any#text")) is None
    assert sources.size_bytes(("text:gs://bucket/*.txt",)) is None
