"""Fuzzes texts: a corpus is prepared, or none is written and one line is printed."""

import codecs
import gzip
import json
import os

from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.corpus import build, corpus
from tests.corpora import changed, make_config
from tests.faults.fuzzed import JSON, config_error, new_directory

PIECES = [
    b"w1 w2 w3.\n",
    b"w4 w5! w6 w7?\n\n",
    b"\n",
    b"\n\n",
    b"\r",
    b"\r\n",
    b"\x00",
    b"\x0b\x0c\x1c\x85",
    b" \t",
    codecs.BOM_UTF8,
    codecs.BOM_UTF16_LE,
    codecs.BOM_UTF32_BE,
    b"= w8 =\n",
    b"# w9\n",
    b"[MASK] [SEP] [CLS]",
    "\u4e2d\u6587\u3002\u2028\u2029\ufffd\u200b\U0001f600".encode(),
    b"\xed\xa0\x80",  # half a surrogate pair
    b"\xc3",
    b"\xff\xfe",
    b"w" * 3000,
    b"w1 " * 2000,
    b"\x1f\x8b\x08\x00",
    b"BZh9",
    b"<doc id=1 title=w1>\n",
    b"</doc>\n",
]
bytes_of_text = (
    st.lists(st.sampled_from(PIECES) | st.binary(max_size=40), max_size=40).map(
        b"".join
    )
    | st.tuples(
        st.text(max_size=200),
        st.sampled_from(["utf-16", "utf-32", "utf-16-be", "cp437"]),
    ).map(lambda pair: pair[0].encode(pair[1], "replace"))
    | st.lists(st.sampled_from(PIECES)).map(lambda p: gzip.compress(b"".join(p)))
)
many = st.lists(bytes_of_text, max_size=3)


def check(contents: list[bytes], kind: str, after: str, options: dict) -> None:
    directory = new_directory()
    for i, content in enumerate(contents):
        (directory / f"text-{i}").write_bytes(content)
    config = make_config(
        directory,
        sources=(f"{kind}:{directory}/text-*{after}",),
        num_shards=1,
        num_streams=1,
        max_line_bytes=1024,
        max_document_bytes=1024,
        **options,
    )
    corpus_dir = config.data.corpus_dir
    if config_error(lambda: build.prepare(config, 1), "config.", "text-"):
        assert_no_corpus(corpus_dir)
        return
    found = corpus.read(config)
    expected = {"manifest.json", "vocab.txt"}
    for shard in (*found.shards["train"], *found.shards["validation"]):
        tokens, documents = found.load(shard)
        assert len(tokens) == documents.token_offsets[-1] > 0
        assert tokens.max() < len(found.tokenizer.vocab)
        assert not {0, 2, 3, 4} & set(tokens.tolist())  # no special token but [UNK]
        expected.add(shard.file)
    assert set(os.listdir(corpus_dir)) == expected


def assert_no_corpus(corpus_dir: str) -> None:
    """Asserts that the directory holds no more than work that can be resumed."""
    assert not os.path.exists(corpus_dir) or os.listdir(corpus_dir) == ["unfinished"]


options = st.fixed_dictionaries(
    {
        "invalid_utf8": st.sampled_from(["error", "replace", "skip"]),
        "next_sentence": st.booleans(),
        "word_segmented": st.booleans(),
        "validation_fraction": st.sampled_from([0.0, 0.3]),
    }
)


@given(many, st.sampled_from(["text", "files"]), options)
def test_plain_text(contents, kind, options):
    check(contents, kind, "", options)


@given(many, options)
def test_wikiextractor(contents, options):
    check(contents, "wikiextractor", "", options)


json_lines = st.lists(
    st.dictionaries(st.sampled_from(["text", "a", "a.b"]), JSON, max_size=3).map(
        lambda value: json.dumps(value).encode()
    )
    | st.text(max_size=300).map(lambda text: json.dumps({"text": text}).encode())
    | st.sampled_from(PIECES)
    | st.sampled_from([b"[" * 100_000, b'{"text": "w1 w2. w3"}', b"NaN", b"1" * 5000])
    | st.binary(max_size=30),
    max_size=12,
).map(b"\n".join)


@given(st.lists(json_lines, max_size=3), st.sampled_from(["text", "a.b"]), options)
def test_json_lines(contents, field, options):
    check(contents, "jsonl", f"#{field}", options)


@given(st.lists(st.lists(st.sampled_from(PIECES[:20]), max_size=60).map(b"".join)))
def test_training_a_vocabulary(contents):
    """The text may have too few or too many characters for 60 pieces."""
    directory = new_directory()
    for i, content in enumerate(contents):
        (directory / f"text-{i}").write_bytes(content)
    kinds = ("wordpiece", "sentencepiece_unigram", "sentencepiece_bpe")
    config = make_config(
        directory,
        sources=(f"files:{directory}/text-*",),
        num_shards=1,
        num_streams=1,
        invalid_utf8="replace",
        next_sentence=False,
        validation_fraction=0.0,
    )
    kind = kinds[len(contents) % 3]
    config = changed(config, "tokenizer", kind=kind, vocab_file="", vocab_size=60)
    if config_error(lambda: build.prepare(config, 1), "config.", "text-"):
        assert_no_corpus(config.data.corpus_dir)
    else:
        assert len(corpus.read(config).tokenizer.vocab) == 60
