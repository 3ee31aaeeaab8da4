"""Tests of bert_jax.data.sources.sources: every kind of source and its errors."""

import collections
import gzip
import json
import re
import textwrap

import numpy as np
import pytest

from bert_jax.data.corpus import encoding as encoding_lib
from bert_jax.data.corpus import index
from bert_jax.data.sources import kind as kind_lib
from bert_jax.data.sources import lines, plain, sources
from bert_jax.errors import ConfigError
from tests.commands import run_code
from tests.conftest import make_config

DATA = make_config().data


def raw(spec, counts=None, data=DATA):
    counts = collections.Counter() if counts is None else counts
    return list(sources.read(spec, data, counts))


def read(kind, path, suffix="", counts=None, **changes):
    """Reads the documents of a source as lists of sentences."""
    data = make_config(**{f"data__{key}": value for key, value in changes.items()}).data
    counts = collections.Counter() if counts is None else counts
    found = raw(f"{kind}:{path}{suffix}", counts, data)
    return [encoding_lib.clean_sentences(document, data, counts) for document in found]


def write(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


# ------------------------------------------------------------------------ text

ONE_DOCUMENT_EACH = [["One is first.", "Two is next.", "Three."], ["Four.", "Five."]]


def random_text(num_words, seed=0):
    """Returns a paragraph of sentences of random words."""
    rng = np.random.default_rng(seed)
    words = ["".join(chr(97 + c) for c in rng.integers(0, 26, n)) for n in range(1, 12)]
    text = " ".join(words[i] for i in rng.integers(0, len(words), num_words))
    found = [text[i : i + 90].strip().capitalize() for i in range(0, len(text), 90)]
    return ". ".join(found) + "."


def wrapped(paragraphs, width=72):
    return "\n\n".join("\n".join(textwrap.wrap(text, width)) for text in paragraphs)


def in_file(kind, texts):
    """Returns the content of a file of the given kind that contains the documents."""
    if kind == "text":
        return "".join(f"# Title\n\n{text}\n\n" for text in texts)
    if kind == "wikiextractor":
        return "".join(f"<doc id=1>\nTitle\n\n{text}\n</doc>\n" for text in texts)
    if kind == "files":
        return texts[0]
    key = "text" if kind == "wikiextractor JSON" else "body"
    return "".join(json.dumps({"title": "T", key: text}) + "\n" for text in texts)


FILE_KINDS = ["text", "files", "wikiextractor", "wikiextractor JSON", "jsonl"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("kind", FILE_KINDS)
def test_wrapped_documents_equal_unwrapped_ones(tmp_path, kind, line_end):
    """Each document is examined separately: wrapped at 72, not wrapped, at 60."""
    texts = [[random_text(120, 3 * i + j) for j in range(3)] for i in range(3)]
    verse = "\n".join(["Shall I compare thee to a summer's day?", "So long"] * 9)
    first = wrapped(texts[0])
    given = [first, "\n\n".join(texts[1]), verse, wrapped(texts[2], 60)]
    expected = ["\n\n".join(texts[0]), given[1], verse, "\n\n".join(texts[2])]
    suffix = "#body" if kind == "jsonl" else ""
    name = kind.split()[0]
    counts = collections.Counter()
    given = in_file(kind, given).replace("\n", line_end)
    if kind in ("jsonl", "wikiextractor JSON"):
        given = given.replace("\\n", json.dumps(line_end)[1:-1])
    found = read(name, write(tmp_path / "given", given), suffix, counts)
    twin = write(tmp_path / "twin", in_file(kind, expected))
    assert found == read(name, twin, suffix)
    num_documents = 1 if kind == "files" else 4
    assert len(found) == num_documents
    assert counts == {"documents_unwrapped": (num_documents + 1) // 2}


@pytest.mark.parametrize(
    "separator", ["\r", "\r\n", "\u2028", "\u2029", "\x85", "\v", "\f", "\x1c"]
)
@pytest.mark.parametrize(
    "text",
    [
        "One here\nTwo there\n\nThree\nFour\nFive",
        "# Title\n\nOne. Two.\nThree. Four.\n# Next\nFive. Six.",
        "One. Two.\nThree. Four.\n\nFive. Six.",
    ],
    ids=["sentence per line", "headings", "running text"],
)
def test_any_line_end_is_equivalent_to_lf(tmp_path, text, separator):
    twin = read("text", write(tmp_path / "twin.txt", text))
    path = tmp_path / "other.txt"
    path.write_bytes(text.replace("\n", separator).encode())
    assert read("text", path) == twin
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", separator).encode())
    assert read("text", path) == twin


# ----------------------------------------------------------------------- files


def test_each_file_is_a_document_without_its_headings(tmp_path):
    book = """# Title: A Book

## Author: Somebody

-------

### Chapter 1

One is first. Two is next.

* * *

Three.
"""
    write(tmp_path / "a.md", book)
    write(tmp_path / "b.md", "Four. Five.")
    assert read("files", tmp_path / "*.md") == ONE_DOCUMENT_EACH


# -------------------------------------------------------- sizes and invalid bytes

LIMITS = {"max_line_bytes": 1024, "max_document_bytes": 4096}


def test_long_documents_are_split_into_parts(tmp_path):
    lines = [f"Line {i} of a very long document." for i in range(1000)]
    path = write(tmp_path / "a.txt", "\n".join(lines) + "\n\nA short one.\nEnd.")
    counts = collections.Counter()
    found = read("text", path, "", counts, **LIMITS)
    assert sum(found[:-1], []) == lines and found[-1] == ["A short one.", "End."]
    sizes = [len("\n".join(document)) + 1 for document in found]
    assert max(sizes) <= 4096 and min(sizes[:-2]) > 4000
    assert counts == {"documents_cut": len(found) - 2}


@pytest.mark.parametrize("kind", ["text", "files", "wikiextractor", "jsonl"])
def test_long_lines_are_split_into_parts_without_losing_a_word(tmp_path, kind):
    words = [f"word{i}" for i in range(1500)]
    text = " ".join(words)
    if kind == "wikiextractor":
        text = f"<doc id=1>\nTitle\n{text}\n</doc>"
    if kind == "jsonl":
        text = json.dumps({"text": text})
    path = write(tmp_path / "a", text)
    counts = collections.Counter()
    limits = LIMITS | ({"max_document_bytes": 2**14} if kind == "jsonl" else {})
    found = read(kind, path, "#text" if kind == "jsonl" else "", counts, **limits)
    parts = sum(found, [])
    assert " ".join(parts).split() == words
    assert 512 < max(map(len, parts)) <= 1024
    assert counts["lines_cut"] >= 1


@pytest.mark.parametrize("kind", ["text", "files", "wikiextractor", "jsonl"])
def test_invalid_bytes_are_an_error_replaced_or_skipped(tmp_path, kind):
    """Only the document with invalid bytes is skipped; for files: it is the file."""
    wrong, good = b"Caf\xe9 one. Bad \xff\xfe two.", b"Three. Four."
    if kind == "text":
        content = b"\n\n".join([good + b"\nMore. Two.", wrong, good])
        expected = [["Three.", "Four.", "More.", "Two."], ["Three.", "Four."]]
    elif kind == "wikiextractor":
        pages = [b"<doc id=1>\nTitle\n%s\n</doc>\n" % text for text in (wrong, good)]
        content, expected = b"".join(pages), [["Three.", "Four."]]
    elif kind == "jsonl":
        content = b'{"text": "%s"}\n{"text": "%s"}' % (wrong, good)
        expected = [["Three.", "Four."]]
    else:
        (tmp_path / "b").write_bytes(good)
        content, expected = wrong, [["Three.", "Four."]]
    (tmp_path / "a").write_bytes(content)
    suffix = "#text" if kind == "jsonl" else ""
    with pytest.raises(ConfigError, match=r"/a:\d is not UTF-8.*0xe9 at byte"):
        read(kind, tmp_path / "*", suffix)
    counts = collections.Counter()
    found = read(kind, tmp_path / "*", suffix, counts, invalid_utf8="replace")
    assert ["Caf\ufffd one.", "Bad \ufffd two."] in found
    assert counts == {"lines_repaired": 1}
    counts = collections.Counter()
    found = read(kind, tmp_path / "*", suffix, counts, invalid_utf8="skip")
    assert found == expected
    assert counts == {"documents_not_utf8": 1}


MEASURE = """
import collections, resource, sys
from bert_jax.data.corpus import encoding
from bert_jax.data.sources import sentences, sources
from tests.conftest import make_config

def peak():
    with open("/proc/self/status") as file:
        return next(int(l.split()[1]) for l in file if l.startswith("VmHWM")) / 1024

data = make_config().data
counts = collections.Counter()
before, num_bytes = peak(), 0
for document in sources.read(sys.argv[1], data, counts):
    num_bytes += sum(map(len, encoding.clean_sentences(document, data, counts)))
print(before, peak(), num_bytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gzip", "document", "one word", "jsonl"])
def test_memory_is_bounded_by_the_limits_not_by_the_input(tmp_path, case):
    """Reading 100 MB in one line, document or word takes under 300 MB of memory."""
    size = 100 * 2**20
    path = tmp_path / "a.txt"
    sentence = b"A sentence of some words, neither long nor short. "
    unit = {
        "gzip": sentence,
        "document": sentence[:-1] + b"\n",
        "one word": "\u4e00\U0001f600".encode() * 8,
        "jsonl": b'{"text": "%s"}\n' % (sentence * 2000),
    }[case]
    with (gzip.open if case == "gzip" else open)(path, "wb") as file:
        for _ in range(size // (len(unit) * 64)):
            file.write(unit * 64)
    spec = f"jsonl:{path}#text" if case == "jsonl" else f"text:{path}"
    result = run_code(MEASURE, spec)
    assert result.returncode == 0, result.stderr
    before, peak, num_chars = map(float, result.stdout.split())
    assert num_chars > size / 7  # all of it: a character has up to four bytes
    assert peak - before < 300
    assert peak < 1024


# ----------------------------------------------------------------------- jsonl


def test_jsonl(tmp_path):
    objects = [
        {"id": 1, "body": "One is first. Two is next.\nThree."},
        {"id": 2, "body": ""},
        {"id": 2, "body": None},
        {"id": 3, "body": "Four. Five."},
    ]
    path = tmp_path / "x.jsonl"
    write(path, "\n\n".join(map(json.dumps, objects)))
    first, second = ONE_DOCUMENT_EACH
    assert read("jsonl", path, "#body") == [first, [], [], second]


NESTED = '{"a": {"b": {"c": "Deep. Deeper."}}, "a.b": "Flat."}'


@pytest.mark.parametrize(
    "line, field, sentences",
    [
        (NESTED, "a.b.c", ["Deep.", "Deeper."]),
        (NESTED, "a.b", ["Flat."]),  # a field whose name contains a dot
        (
            '{"b": "One\u2028two\\nthree\\u0085four"}',
            "b",
            ["One", "two", "three", "four"],
        ),
        ('{"b": "a \\ud800 b \\udcff c"}', "b", ["a ? b ? c"]),  # lone surrogates
    ],
)
def test_jsonl_text_of_a_field(tmp_path, line, field, sentences):
    path = write(tmp_path / "x.jsonl", line)
    assert read("jsonl", path, f"#{field}", invalid_utf8="skip") == [sentences]


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"body": {"c": 1}}', "has dict in the field 'body', not text"),
        ('{"text": "a", "n": 1}', r"has no field 'body' .*it has: text, n\);"),
        (
            '{"body": 3, "n": 1}',
            "has int in the field 'body', not text .fields: body, n",
        ),
        ("[1]", "is list, not an object"),
        ("{", r"is not JSON \(.* at column 2\)"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"text": "", "n": ' + "1" * 5000 + "}", "has an integer of too many digits"),
    ],
    ids=lambda text: text[:20],
)
def test_jsonl_line_without_the_field(tmp_path, line, message):
    path = write(tmp_path / "x.jsonl", '{"body": "Fine."}\n' + line)
    with pytest.raises(ConfigError, match=f"x.jsonl:2 {message}"):
        read("jsonl", path, "#body")


def test_jsonl_line_too_long_is_dropped_and_counted(tmp_path):
    long = json.dumps({"body": "word " * 2000})
    path = write(tmp_path / "x.jsonl", f'{long}\n{{"body": "Kept."}}\n{long}')
    counts = collections.Counter()
    limits = {"max_line_bytes": 1024, "max_document_bytes": 2048}
    assert read("jsonl", path, "#body", counts, **limits) == [["Kept."]]
    assert counts["json_lines_too_long"] == 2


# --------------------------------------------------------------- wikiextractor


def test_wikiextractor(tmp_path):
    """The title line is not text; a redirect is empty; the file may be cut off."""
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
"""
    first, second = ONE_DOCUMENT_EACH
    assert read("wikiextractor", write(tmp_path / "wiki_00", text)) == [
        first,
        [],
        second,
    ]


def test_wikiextractor_json(tmp_path):
    """A repeated title is dropped; only some versions of WikiExtractor repeat it."""
    objects = [
        {"id": "1", "title": "First", "text": "One is first. Two is next.\nThree."},
        {"id": "2", "title": "A redirect", "text": ""},
        {"id": "3", "title": "Second", "text": "Second\n\nFour. Five."},
    ]
    path = write(tmp_path / "wiki_00", "\n" + "\n".join(map(json.dumps, objects)))
    first, second = ONE_DOCUMENT_EACH
    assert read("wikiextractor", path) == [first, [], second]


@pytest.mark.parametrize("form", ["doc", "json"])
def test_wikiextractor_text_is_unescaped_once(tmp_path, form):
    text = "R&amp;B is &lt;b&gt;. Write &amp;lt; or &quot;&lt;&quot;."
    page = f"<doc id=1>\nT\n{text}\n</doc>"
    if form == "json":
        page = json.dumps({"title": "T", "text": text})
    assert read("wikiextractor", write(tmp_path / "wiki_00", page)) == [
        ["R&B is <b>.", 'Write &lt; or "<".']
    ]


def test_wikiextractor_rejects_plain_text(tmp_path):
    path = write(tmp_path / "plain.txt", "One.\nTwo.\n")
    with pytest.raises(ConfigError, match="plain.txt has no <doc"):
        read("wikiextractor", path)


# ----------------------------------------------------------------- every source


@pytest.mark.parametrize("content", ["", " \n\n\t\n", "# Title\n\n---\n"])
@pytest.mark.parametrize("kind", ["text", "files"])
def test_no_text_names_the_files(tmp_path, kind, content):
    for name in "abcd":
        write(tmp_path / name, content)
    spec = f"{kind}:{tmp_path}/*"
    assert not any(document.lines for document in raw(spec))
    names = f"{tmp_path}/a, {tmp_path}/b, {tmp_path}/c, ..."
    expected = f"no text in {spec!r}: 0 documents in 4 file(s), {names}"
    (found,) = sources.find((spec,))
    for name in "abcd":  # what was found is named, even if it is gone
        (tmp_path / name).unlink()
    assert str(found.no_text()).endswith(expected)


def test_num_bytes_of_a_document_is_its_size_in_utf8():
    document = kind_lib.Document(("\u4f60\u597d", "w1"), is_split=True)
    assert document.num_bytes == 6 + 1 + 2 + 1


# ------------------------------------------------------------------------- finding

GLOB_KINDS = ["text", "files", "jsonl", "parquet", "wikiextractor"]


@pytest.mark.parametrize("kind", GLOB_KINDS)
def test_no_file_matches(tmp_path, kind):
    with pytest.raises(ConfigError, match=r"no file matches '.*/none\*"):
        sources.find((f"{kind}:{tmp_path}/none*#text",))


@pytest.mark.parametrize("kind", GLOB_KINDS)
def test_directory_instead_of_a_file_is_an_error(tmp_path, kind):
    with pytest.raises(ConfigError, match=rf"is a directory; .*{tmp_path}/\*\*/"):
        sources.find((f"{kind}:{tmp_path}" + "#text" * sources.KINDS[kind].has_field,))


def test_a_pattern_finds_each_file_once_and_a_name_with_brackets_itself(tmp_path):
    (tmp_path / "a/b [1]").mkdir(parents=True)
    path = write(tmp_path / "a/b [1]/c.txt", "One.")
    for pattern in (f"{tmp_path}/**/**/*.txt", path):
        (found,) = sources.find((f"text:{pattern}",))
        assert [file.path for file in found.files] == [str(path)]
    for spec in (f"text:{path.parent}", f"{path.parent}"):
        with pytest.raises(ConfigError) as error:
            sources.find((spec,))
        (advice,) = re.findall(
            r"/.*?/\*\*/\*\.txt", str(error.value).split(" write ")[1]
        )
        assert sources.find((f"text:{advice}",))


def test_directories_and_broken_links_beside_files_are_ignored(tmp_path):
    path = write(tmp_path / "a.txt", "One.")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    (found,) = sources.find((f"text:{tmp_path}/*",))
    assert [file.path for file in found.files] == [str(path)]


@pytest.mark.parametrize("end", ["", "#"])
def test_json_lines_need_a_field(tmp_path, end):
    path = write(tmp_path / "x", "{}")
    with pytest.raises(ConfigError, match=f"write jsonl:{path}#text"):
        sources.find((f"jsonl:{path}{end}",))


def test_embedded_and_tfds_sources_have_no_files(tmp_path):
    path = write(tmp_path / "x.txt", "One.")
    specs = ("embedded:", f"text:{path}", f"jsonl:{path}#a", "tfds:any#text")
    found = sources.find(specs)
    assert [len(source.files) for source in found] == [0, 1, 1, 0]
    assert found[0].version and not found[3].version


def test_only_json_lines_and_parquet_have_a_field_in_their_pattern(tmp_path):
    """In the pattern of any other kind, # is part of the file name."""
    path = write(tmp_path / "c#.txt", "One.\nTwo.")
    (found,) = sources.find((f"text:{path}",))
    assert found.text_bytes == 9 and found.kind.format == "text"
    (found,) = sources.find((f"jsonl:{tmp_path}/c*.txt#a.b",))
    assert found.kind.format == "jsonl#a.b"
    (found,) = sources.find((f"parquet:{tmp_path}/c*.txt#a.b",))
    assert found.kind.format == "parquet#a.b"


def test_total_bytes_of_sources(tmp_path):
    def total(*specs):
        return sources.total_bytes(sources.find(specs))

    for name, size in (("a.txt", 10), ("b.txt", 5)):
        write(tmp_path / name, "x" * size)
    text, jsonl = f"text:{tmp_path}/*.txt", f"jsonl:{tmp_path}/a.txt#text"
    assert total(text, "embedded:", jsonl) == 25
    (tmp_path / "a.txt.gz").write_bytes(b"x" * 10)
    assert total(f"files:{tmp_path}/*.gz") == 30
    assert total(text, "tfds:any#text") is None


# ------------------------------------------------------------------- specs and kinds


@pytest.mark.parametrize(
    "spec",
    ["", "text", "text:", "txt:a.txt", "a.txt", "tfds:", "embedded", "embedded:all"],
)
def test_the_error_for_a_malformed_spec_lists_all_kinds(spec):
    forms = "embedded:, text:GLOB, .* wikiextractor:GLOB, hf:.*, tfds:"
    with pytest.raises(ConfigError, match=f"has '{spec}'; a source is one of {forms}"):
        sources.parse(spec)


class Reversed(kind_lib.FileSource):
    """Text that is read from its end."""

    name = "reversed"
    form = "reversed:GLOB"

    def read(self, path, part, reading):
        found = list(plain.plain_lines(path, reading))
        yield from kind_lib.assemble(iter(found[::-1]), reading)


def test_a_class_and_an_entry_are_a_new_kind(tmp_path, monkeypatch):
    spec = f"reversed:{tmp_path}/*.txt"
    with pytest.raises(ConfigError, match="a source is one of"):
        sources.find((spec,))
    monkeypatch.setitem(sources.KINDS, "reversed", Reversed)
    (tmp_path / "a.txt").write_text("One.\nTwo.")
    (document,) = raw(spec)
    assert document.lines == ("Two.", "One.")
    found = sources.find((spec,))
    assert sources.total_bytes(found) == 9
    index.check((spec,))
    assert index.plan_units(found, 1) == [(0, f"{tmp_path}/a.txt", lines.WHOLE)]
    with pytest.raises(ConfigError, match=", reversed:GLOB$"):
        sources.parse("x:y")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("books/*.txt", "; for files, write text:books/*.txt"),
        (
            "owner/dataset",
            "write text:owner/dataset, and hf:owner/dataset for a dataset of the Hub",
        ),
        ("web:x", "[#field]"),
        ("text:", "[#field]"),
        ("txt:a.txt", "; the nearest is text:"),
    ],
)
def test_a_path_or_dataset_without_a_kind_is_answered_with_a_source(spec, hint):
    with pytest.raises(ConfigError) as error:
        sources.parse(spec)
    assert str(error.value).endswith(hint)
