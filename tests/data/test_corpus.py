"""Tests of bert_jax.data.corpus."""

import dataclasses
import json
import math
import os
import shutil

import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax.config import ConfigError, DamagedError
from bert_jax.data import corpus, corpus_writer, packing, pairs, tokenizers
from configs import tiny
from tests.corpora import (
    WORDS,
    all_text,
    changed,
    make_config,
    make_documents,
    write,
)


@pytest.fixture
def written(tmp_path):
    """A config, its documents and its corpus."""
    config, documents = make_config(tmp_path), make_documents(60)
    return config, documents, write(config, documents)


def test_round_trip(written):
    config, documents, found = written
    assert sorted(all_text(found)) == sorted(documents)
    assert found.tokenizer == tokenizers.load(config.tokenizer)
    assert len(found.shards["train"]) == 2
    assert len(found.shards["validation"]) == 1


def rows_per_epoch(shard, length, short_seq_prob, per_row=1, next_sentence=True):
    """Asks as the pipeline does."""
    config = tiny.get_config()
    config.data.short_seq_prob = short_seq_prob
    config.data.next_sentence = next_sentence
    config.model.max_position_embeddings = 512
    config.phases[0].update(
        sequence_length=length,
        max_predictions=max(length // 2, 8),
        max_sequences_per_row=per_row,
    )
    made = config_lib.from_config_dict(config)
    return shard.rows_per_epoch(made.data, made.phases[0])


def make_shard(counts):
    """A manifest entry of these rows and spreads by length."""
    passes = {
        length: {"rows": rows, "tokens": [0, 0], "spread": spread}
        for length, (rows, spread) in counts.items()
    }
    return corpus.Shard("s", 1, 1, 1, {"next_sentence": passes}, 1, "")


def test_rows_per_epoch_is_the_expected_number_and_two_deviations():
    """Also between two lengths of the manifest, where pairs go by a power law."""
    shard = make_shard(
        {
            "16": ({"1": [400, 800]}, 0),
            "64": ({"1": [100, 200]}, 0),
            "256": ({"1": [25, 50]}, 0),
        }
    )
    for length, full in ((16, 400), (32, 200), (64, 100), (128, 50), (256, 25)):
        for p in (0.0, 0.1, 0.5):
            rows = full * (1 + p) + 2 * math.sqrt(full * (1 + p))
            assert rows - 0.1 <= rows_per_epoch(shard, length, p) < rows + 1.1
    # And which documents are short: half of 100 that make 4 more pairs each, say.
    shard = make_shard({"64": ({"1": [100, 500]}, 1600)})
    assert 300 + 2 * math.sqrt(400) <= rows_per_epoch(shard, 64, 0.5)
    # Packed two and more to a row: fewer rows, and as much fewer deviate.
    shard = make_shard({"64": ({"1": [900, 900], "2": [450, 450], "8": [300, 300]}, 0)})
    assert rows_per_epoch(shard, 64, 0.0, per_row=2) == 450 + 30
    assert rows_per_epoch(shard, 64, 0.0, per_row=32) == 300 + 20


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The shape of a shard of long and short documents, and its manifest entry."""
    config = make_config(
        tmp_path_factory.mktemp("large"),
        num_shards=1,
        num_streams=1,
        validation_fraction=0.0,
    )
    write(config, make_documents(6000, max_sentences=60))
    found = corpus.read(config)
    (shard,) = found.shards["train"]
    return shard, found.load(shard)[1], config.data.corpus_dir


@pytest.mark.parametrize("short_seq_prob", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("length", [32, 90, 128, 512])
@pytest.mark.parametrize(
    "next_sentence, per_row", [(True, 1), (False, 1), (True, 3), (True, 6), (False, 8)]
)
def test_rows_per_epoch_is_a_little_more_than_a_pass(
    large, length, short_seq_prob, next_sentence, per_row
):
    """Too few rows would leave pairs out in each epoch, too many repeat some.

    90 is no length of the manifest, 6 no number of pairs in a row.
    """
    shard, documents, _ = large
    rows = rows_per_epoch(shard, length, short_seq_prob, per_row, next_sentence)
    draw = pairs.draw_pairs if next_sentence else pairs.draw_segments
    passes = []
    for i in range(8):
        drawn = draw(documents, length, short_seq_prob, pairs.CounterRandom(1, i))
        passes.append(packing.num_rows(drawn.lengths, length, per_row))
    # Between two lengths, and where short pairs and full ones share rows, the estimate
    # is a few percent high.
    is_direct = length != 90 and per_row == 1
    assert (0.96 if is_direct else 0.92) * rows <= np.mean(passes) <= rows
    assert (np.array(passes) > 1.01 * rows).sum() <= 1


def test_manifest_says_how_much_of_rows_is_text(large):
    """Held against rows that are counted one by one."""
    _, documents, directory = large
    with open(os.path.join(directory, "manifest.json")) as file:
        found = json.load(file)["padding_efficiency"]
    for name, draw in (
        ("next_sentence", pairs.draw_pairs),
        ("masked_lm_only", pairs.draw_segments),
    ):
        num_tokens, num_rows = 0, {1: 0, 8: 0}
        for seed in range(10):  # short documents make passes of very unequal length
            drawn = draw(documents, 128, 0.1, pairs.CounterRandom(seed))
            num_tokens += drawn.lengths.sum()
            for k in num_rows:
                num_rows[k] += len(packing.pack(drawn.lengths, 128, k))
        for k, count in num_rows.items():
            share = num_tokens / count / 128
            assert found[name]["128"][str(k)] == pytest.approx(share, 0.02)


# ------------------------------------------------------------- read: what differs


@pytest.mark.parametrize(
    "section, key, value, message",
    [
        ("data", "sources", ["text:b"], r"data.sources=\['text:b'\].*text.txt'\]"),
        ("data", "source_weights", [2.0], r"weights=\[2.0\], .* made with \[\];"),
        ("data", "invalid_utf8", "skip", "data.invalid_utf8='skip', .*'error'"),
        ("data", "max_line_bytes", 2**19, "data.max_line_bytes=524288, .*1048576"),
        ("data", "max_document_bytes", 2**21, "data.max_document_bytes=2097152, "),
        ("data", "num_shards", 4, "data.num_shards=4, .* made with 2;"),
        ("data", "validation_fraction", 0.1, "validation_fraction=0.1, .* with 0.2;"),
        ("tokenizer", "vocab_size", 56, "tokenizer.vocab_size=56, .* made with 55;"),
        ("tokenizer", "lowercase", False, "lowercase=False, .* made with True;"),
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
    rewrite_manifest(found, recipe=recipe)
    message = "vocab_file='.*vocab-55.txt', .* made with a vocabulary trained on it"
    with pytest.raises(ConfigError, match=message):
        corpus.read(config)


def test_settings_that_are_not_of_the_corpus_may_change(written):
    config, _, found = written
    other = changed(config, "data", num_streams=1, short_seq_prob=0.3)
    assert corpus.read(other) == found


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
    with pytest.raises(DamagedError, match="vocab.txt is not the vocabulary that"):
        corpus.read(config)


def test_no_corpus(tmp_path):
    config = make_config(tmp_path)
    with pytest.raises(ConfigError, match="corpus_dir='.*corpus' has no manifest.json"):
        corpus.read(config)


def rewrite_manifest(found, **values):
    """Changes what the manifest says, as somebody would who made it so."""
    path = os.path.join(found.directory, "manifest.json")
    with open(path) as file:
        manifest = json.load(file) | values
    with open(path, "w") as file:
        json.dump(manifest | {"sha256": corpus.manifest_digest(manifest)}, file)


def test_newer_format(written):
    config, _, found = written
    newer = corpus.FORMAT_VERSION + 1
    rewrite_manifest(found, format_version=newer)
    with pytest.raises(ConfigError, match=f"format_version {newer}, this code reads"):
        corpus.read(config)


def test_a_manifest_that_was_edited_is_told_from_another_format(written):
    config, _, found = written
    path = os.path.join(found.directory, "manifest.json")
    with open(path) as file:
        manifest = json.load(file)
    newer = corpus.FORMAT_VERSION + 1
    for changes in ({"format_version": newer}, {"documents": {}}, {"sha256": None}):
        with open(path, "w") as file:
            json.dump(manifest | changes, file)
        with pytest.raises(DamagedError, match="manifest.json was changed: its sha256"):
            corpus.read(config)
    manifest.pop("sha256")  # as versions before wrote it
    with open(path, "w") as file:
        json.dump(manifest | {"format_version": 3}, file)
    with pytest.raises(ConfigError, match="has format_version 3, this code") as info:
        corpus.read(config)
    assert not isinstance(info.value, DamagedError)


@pytest.mark.parametrize(
    "changes", [{"recipe": []}, {"splits": {"train": [{}]}}, {"splits": []}]
)
def test_a_manifest_of_another_shape(written, changes):
    config, _, found = written
    rewrite_manifest(found, **changes)
    with pytest.raises(ConfigError, match="manifest.json is not a corpus manifest"):
        corpus.read(config)


def test_a_manifest_without_the_counts_of_the_objective(written):
    config, _, found = written
    shards = [
        dataclasses.asdict(shard) | {"passes": {}} for shard in found.shards["train"]
    ]
    rewrite_manifest(found, splits={"train": shards, "validation": []})
    with pytest.raises(ConfigError, match="manifest.json is not a corpus manifest"):
        corpus.read(config)


@pytest.mark.parametrize(
    ("name", "value"), [("file", 3), ("num_tokens", "7"), ("passes", [])]
)
def test_a_shard_with_a_value_of_another_type(written, name, value):
    config, _, found = written
    shards = [dataclasses.asdict(x) | {name: value} for x in found.shards["train"]]
    rewrite_manifest(found, splits={"train": shards, "validation": []})
    with pytest.raises(ConfigError, match="manifest.json is not a corpus manifest"):
        corpus.read(config)


def test_a_directory_for_a_manifest(written):
    config, _, found = written
    path = os.path.join(found.directory, "manifest.json")
    os.remove(path)
    os.mkdir(path)
    with pytest.raises(ConfigError, match="manifest.json is not a corpus manifest"):
        corpus.read(config)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"3", b"\xff\xfe"])
def test_damaged_manifest(written, content):
    config, _, found = written
    path = os.path.join(found.directory, "manifest.json")
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(ConfigError, match="manifest.json is not a corpus manifest"):
        corpus.read(config)


# -------------------------------------------------------------- damaged files


def path_of(found, split="train", i=0):
    return os.path.join(found.directory, found.shards[split][i].file)


def flip_bit(path):
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def first_record_bytes(path):
    with open(path, "rb") as file:
        return int.from_bytes(file.read(8), "little") + 16


FAULTS = {
    "missing": (os.remove, "is missing", "cannot be read"),
    "empty": (lambda path: os.truncate(path, 0), "has 0 bytes", "is empty or cut off"),
    "cut in a header": (
        lambda path: os.truncate(path, 5),
        "has 5 bytes, its manifest says",
        "is empty or cut off",
    ),
    "cut in a record": (
        lambda path: os.truncate(path, os.path.getsize(path) // 2),
        r"has \d+ bytes, its manifest says",
        "cannot be read",
    ),
    "cut at its last byte": (
        lambda path: os.truncate(path, os.path.getsize(path) - 1),
        r"has \d+ bytes, its manifest says",
        "cannot be read",
    ),
    "cut between records": (
        lambda path: os.truncate(path, first_record_bytes(path)),
        r"has \d+ bytes, its manifest says",
        r"holds \(\d+, .*, its manifest says \(",
    ),
    "flipped bit": (flip_bit, "was changed: its sha256 is not", "cannot be read"),
}


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """A corpus of several records a shard."""
    monkeypatch.setattr(corpus_writer, "BLOCK_TOKENS", 200)
    config = make_config(tmp_path)
    found = write(config, make_documents(60))
    for split, i in (("train", 0), ("train", 1), ("validation", 0)):
        path = path_of(found, split, i)
        assert first_record_bytes(path) < os.path.getsize(path)
    return config, found


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("split, i", [("train", 1), ("validation", 0)])
def test_a_damaged_shard_is_named(blocks, split, i, name):
    """When the corpus is opened, and when only later somebody reads the shard."""
    config, found = blocks
    path, (damage, at_open, at_load) = path_of(found, split, i), FAULTS[name]
    damage(path)
    with pytest.raises(DamagedError, match=f"{path} {at_open}.*empty direct") as info:
        corpus.read(config)
    assert "\n" not in str(info.value)
    with pytest.raises(DamagedError, match=f"{path} {at_load}.*empty direct") as info:
        found.load(found.shards[split][i])
    assert "\n" not in str(info.value)


def test_of_a_large_corpus_sizes_are_checked_and_contents_when_they_are_read(
    blocks, monkeypatch
):
    monkeypatch.setattr(corpus, "DIGEST_BYTES", 1)
    config, found = blocks
    flip_bit(path_of(found))
    opened = corpus.read(config)
    with pytest.raises(ConfigError, match="train-00000-of-00002 cannot be read"):
        opened.load(opened.shards["train"][0])
    os.truncate(path_of(found), 100)
    with pytest.raises(ConfigError, match="train-00000-of-00002 has 100 bytes"):
        corpus.read(config)


def test_an_extra_shard(written):
    config, _, found = written
    name = os.path.join(found.directory, "train-00001-of-00003")
    shutil.copy(path_of(found), name)
    with pytest.raises(DamagedError, match=f"{name} is not of the corpus.*remove it"):
        corpus.read(config)


def test_files_that_are_not_shards_do_not_matter(written):
    config, _, found = written
    with open(os.path.join(found.directory, "README.md"), "w") as file:
        file.write("ours")
    assert corpus.read(config) == found


@pytest.mark.parametrize("name", ["num_documents", "num_sentences", "num_tokens"])
def test_a_manifest_whose_counts_differ(written, name):
    config, _, found = written
    with open(os.path.join(found.directory, "manifest.json")) as file:
        splits = json.load(file)["splits"]
    splits["train"][0][name] += 1
    rewrite_manifest(found, splits=splits)
    opened = corpus.read(config)
    with pytest.raises(
        DamagedError, match=r"train-00000-of-00002 holds \(\d+, .* manifest says \("
    ):
        opened.load(opened.shards["train"][0])


def test_without_next_sentence_a_document_is_enough(tmp_path):
    """And a corpus of one is not for training with next sentences."""
    alone = {"num_shards": 1, "num_streams": 1, "validation_fraction": 0.0}
    config = make_config(tmp_path, **alone, next_sentence=False)
    write(config, [["w1 w2 w3"]])
    (shard,) = corpus.read(config).shards["train"]
    assert shard.num_documents == 1
    with pytest.raises(ConfigError, match="next_sentence=True, but .* one document"):
        corpus.read(make_config(tmp_path, **alone))
    few = make_config(tmp_path, next_sentence=False, corpus_dir=str(tmp_path / "few"))
    with pytest.raises(ConfigError, match="num_shards=2 leaves 1 .* none of the 1 "):
        write(few, [["w1 w2 w3"]])
