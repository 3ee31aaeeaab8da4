"""Tests of bert_jax.data.corpus.corpus."""

import json
import os
import pathlib
import shutil

import pytest

from bert_jax.data.corpus import corpus, writer
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError
from tests.commands import flip
from tests.corpora import (
    WORDS,
    changed,
    make_config,
    make_documents,
    rewrite_manifest,
    write,
)


@pytest.fixture
def written(tmp_path):
    """A config, its documents and its corpus."""
    config, documents = make_config(tmp_path), make_documents(60)
    return config, documents, write(config, documents)


# ------------------------------------------------------------- read: what differs


@pytest.mark.parametrize(
    "section, key, value, message",
    [
        ("data", "sources", ["text:b"], r"data.sources=\['text:b'\].*text.txt'\]"),
        ("data", "source_weights", [2.0], r"weights=\[2.0\], .* prepared with \[\];"),
        ("data", "invalid_utf8", "skip", "data.invalid_utf8='skip', .*'error'"),
        ("data", "max_line_bytes", 2**19, "data.max_line_bytes=524288, .*1048576"),
        ("data", "max_document_bytes", 2**21, "data.max_document_bytes=2097152, "),
        ("data", "num_shards", 4, "data.num_shards=4, .* prepared with 2;"),
        ("data", "validation_fraction", 0.1, "validation_fraction=0.1, .* with 0.2;"),
        (
            "tokenizer",
            "vocab_size",
            56,
            "tokenizer.vocab_size=56, .* prepared with 55;",
        ),
        ("tokenizer", "lowercase", False, "lowercase=False, .* prepared with True;"),
        ("tokenizer", "vocab_file", "", "vocab_file='', .* with a vocabulary file;"),
    ],
)
def test_corpus_of_another_recipe(written, section, key, value, message):
    config, _, _ = written
    with pytest.raises(ConfigError, match=f"config.*{message}.*corpus_dir"):
        corpus.read(changed(config, section, **{key: value}))


def test_corpus_with_a_trained_vocabulary(written):
    config, _, found = written
    recipe = corpus.recipe(config) | {"tokenizer.trained": True}
    rewrite_manifest(found.directory, recipe=recipe)
    message = "vocab_file='.*vocab-55.txt', .* prepared with '', a vocabulary trained"
    with pytest.raises(ConfigError, match=message):
        corpus.read(config)


def test_another_vocabulary_file_of_the_same_size(tmp_path, written):
    config, _, _ = written
    vocab = [*tokenizers.SPECIAL_TOKENS, *reversed(WORDS)]
    (tmp_path / "other.txt").write_text("\n".join(vocab))
    other = changed(config, "tokenizer", vocab_file=str(tmp_path / "other.txt"))
    with pytest.raises(ConfigError, match="other.txt' is not the vocabulary of"):
        corpus.read(other)


def test_vocabulary_of_the_corpus_was_edited(written):
    config, _, found = written
    path = os.path.join(found.directory, "vocab.txt")
    with open(path, "a") as file:
        file.write("more\n")
    with pytest.raises(CorruptError, match="vocab.txt is not the vocabulary that"):
        corpus.read(config)


def test_no_corpus(tmp_path):
    config = make_config(tmp_path)
    with pytest.raises(ConfigError, match="corpus_dir='.*corpus' has no manifest.json"):
        corpus.read(config)


def test_an_edited_manifest_is_distinguished_from_another_format(written):
    config, _, found = written
    path = os.path.join(found.directory, "manifest.json")
    with open(path) as file:
        manifest = json.load(file)
    newer = corpus.FORMAT_VERSION + 1
    for changes in ({"format_version": newer}, {"documents": {}}, {"sha256": None}):
        with open(path, "w") as file:
            json.dump(manifest | changes, file)
        with pytest.raises(CorruptError, match="manifest.json is corrupt: its sha256"):
            corpus.read(config)
    rewrite_manifest(found.directory, format_version=newer)
    with pytest.raises(ConfigError, match=f"has format_version {newer}, but") as info:
        corpus.read(config)
    assert not isinstance(info.value, CorruptError)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"{}", b"3", b"\xff\xfe"])
def test_what_is_no_manifest(written, content):
    config, _, found = written
    path = pathlib.Path(found.directory, "manifest.json")
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="manifest.json is not a corpus manifest"):
        corpus.read(config)


def rewrite_column(found, name, change):
    """Changes a column of the training split in the manifest."""
    with open(os.path.join(found.directory, "manifest.json")) as file:
        splits = json.load(file)["splits"]
    splits["train"][name] = change(splits["train"][name])
    rewrite_manifest(found.directory, splits=splits)


# -------------------------------------------------------------- corrupt files


def path_of(found, split="train", i=0):
    return os.path.join(found.directory, found.shards[split][i].file)


def first_record_bytes(path):
    with open(path, "rb") as file:
        return int.from_bytes(file.read(8), "little") + 16


def cut(num_bytes):
    return lambda path: os.truncate(path, num_bytes(path))


SIZE = r"has \d+ bytes, but the manifest lists"
# The fault, and the messages when the corpus is opened and when the shard is loaded.
FAULTS = {
    "missing": (os.remove, "is missing", "is missing"),
    "empty": (cut(lambda path: 0), SIZE, "is empty or truncated"),
    "cut in a header": (cut(lambda path: 5), SIZE, "is empty or truncated"),
    "cut in a record": (cut(lambda x: os.path.getsize(x) // 2), SIZE, "is corrupt"),
    "cut at its end": (cut(lambda x: os.path.getsize(x) - 1), SIZE, "is corrupt"),
    "cut between records": (cut(first_record_bytes), SIZE, "contains .*, but the"),
    "flipped bit": (flip, "is corrupt: its sha256 is not", "is corrupt"),
}


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """A corpus with several records per shard."""
    monkeypatch.setattr(writer, "BLOCK_TOKENS", 200)
    config = make_config(tmp_path)
    found = write(config, make_documents(60))
    for split, i in (("train", 0), ("train", 1), ("validation", 0)):
        path = path_of(found, split, i)
        assert first_record_bytes(path) < os.path.getsize(path)
    return config, found


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("split, i", [("train", 1), ("validation", 0)])
def test_a_corrupt_shard_is_named(blocks, split, i, name):
    """The file is named when the corpus is opened and when the shard is loaded."""
    config, found = blocks
    path, (damage, at_open, at_load) = path_of(found, split, i), FAULTS[name]
    damage(path)
    with pytest.raises(CorruptError, match=f"{path} {at_open}.*empty direct") as info:
        corpus.read(config)
    assert "\n" not in str(info.value)
    with pytest.raises(CorruptError, match=f"{path} {at_load}.*empty direct") as info:
        found.load(found.shards[split][i])
    assert "\n" not in str(info.value)


def test_in_a_large_corpus_records_are_verified_when_a_shard_is_loaded(
    blocks, monkeypatch
):
    monkeypatch.setattr(corpus, "DIGEST_BYTES", 1)
    config, found = blocks
    flip(path_of(found))
    opened = corpus.read(config)
    with pytest.raises(ConfigError, match="train-00000-of-00002 is corrupt"):
        opened.load(opened.shards["train"][0])
    os.truncate(path_of(found), 100)
    with pytest.raises(ConfigError, match="train-00000-of-00002 has 100 bytes"):
        corpus.read(config)


def test_an_extra_shard(written):
    config, _, found = written
    name = os.path.join(found.directory, "train-00001-of-00003")
    shutil.copy(path_of(found), name)
    with pytest.raises(CorruptError, match=f"{name} is not listed in .*remove it"):
        corpus.read(config)


@pytest.mark.parametrize("name", ["num_documents", "num_sentences", "num_tokens"])
def test_a_manifest_whose_counts_differ(written, name):
    config, _, found = written
    rewrite_column(found, name, lambda counts: [counts[0] + 1, *counts[1:]])
    opened = corpus.read(config)
    with pytest.raises(
        CorruptError, match=r"train-00000-of-00002 contains \(\d+, .* manifest lists \("
    ):
        opened.load(opened.shards["train"][0])


def test_without_next_sentence_a_document_is_enough(tmp_path):
    """A corpus of one document cannot be used for training with next sentences."""
    alone = {"num_shards": 1, "num_streams": 1, "validation_fraction": 0.0}
    config = make_config(tmp_path, **alone, next_sentence=False)
    write(config, [["w1 w2 w3"]])
    (shard,) = corpus.read(config).shards["train"]
    assert shard.num_documents == 1
    with pytest.raises(ConfigError, match="next_sentence=True, but .* one document"):
        corpus.read(make_config(tmp_path, **alone))
    few = make_config(tmp_path, next_sentence=False, corpus_dir=str(tmp_path / "few"))
    with pytest.raises(
        ConfigError, match="num_shards=2 leaves 1 .* fewer than 1 of the 1 "
    ):
        write(few, [["w1 w2 w3"]])
