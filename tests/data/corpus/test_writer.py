"""Tests of bert_jax.data.corpus.writer, and of the encoding that leads to it."""

import json
import os
from collections import Counter

import numpy as np
import pytest

from bert_jax.data.corpus import encoding, keyed, shard_file, writer
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError
from tests.corpora import (
    changed,
    load_text,
    make_config,
    make_documents,
    places,
    raw,
    write,
)


@pytest.fixture
def written(tmp_path):
    """A config, its documents and its corpus."""
    config, documents = make_config(tmp_path), make_documents(60)
    return config, documents, write(config, documents)


def one_shard(directory, **data):
    return make_config(
        directory,
        **{"num_shards": 1, "num_streams": 1, "validation_fraction": 0.0} | data,
    )


def document_counts(found):
    with open(os.path.join(found.directory, "manifest.json")) as file:
        return json.load(file)["documents"]


def counts_of(**counts):
    names = (*encoding.COUNTS, "repeated", "copies")
    return dict.fromkeys(names, 0) | counts


def test_several_records_per_shard(tmp_path, monkeypatch, written):
    """The size of blocks does not affect the documents."""
    _, documents, one_block = written
    monkeypatch.setattr(writer, "BLOCK_TOKENS", 40)
    config = make_config(tmp_path, corpus_dir=str(tmp_path / "blocks"))
    found = write(config, documents)
    for split in ("train", "validation"):
        assert load_text(found, split, 0) == load_text(one_block, split, 0)
        assert found.shards[split][0].sha256 != one_block.shards[split][0].sha256


def test_documents_in_several_segments_make_the_same_file(tmp_path):
    """The reference sorts the distinct documents, one at a time."""
    config = one_shard(tmp_path)
    tokenizer = tokenizers.load(config.tokenizer)
    dtype = encoding.id_dtype(tokenizer, config.data)
    documents = make_documents(50) + make_documents(20)  # 20 repeated
    encoder = encoding.DocumentEncoder(config.data, tokenizer)
    entries = [e for d in documents for e in encoder(raw(d), 0, Counter())]
    by_key = sorted({entry.key: entry for entry in entries}.values())
    for num_segments in (1, 2, 7, 70):
        pieces = [
            keyed.from_entries(entries[i::num_segments], dtype)
            for i in range(num_segments)
        ]
        path = tmp_path / f"{num_segments}"
        result = writer.write_shard(str(path), pieces)
        assert result.num_repeated == 20
        tokens, sentence_lengths, _ = shard_file.read(str(path))
        assert tokens.tobytes() == b"".join(e.token_ids for e in by_key)
        assert sentence_lengths.tobytes() == b"".join(
            e.sentence_lengths for e in by_key
        )
        assert path.read_bytes() == (tmp_path / "1").read_bytes()


@pytest.mark.parametrize(
    "vocab_size, dtype", [(65_536, np.uint16), (65_537, np.uint32)]
)
def test_ids_are_as_wide_as_the_vocabulary_needs(tmp_path, vocab_size, dtype):
    config = one_shard(tmp_path, vocab_size=vocab_size)
    vocab = tokenizers.load(config.tokenizer).vocab
    last = tokenizers.WordPiece((*vocab[:-1], "last"), lowercase=True)
    with open(config.tokenizer.vocab_file, "w") as file:
        file.write("\n".join(last.vocab) + "\n")
    found = write(config, [["w1", "last w2"], ["w3", "w4"]])
    tokens, _ = found.load(found.shards["train"][0])
    assert tokens.dtype == dtype
    assert vocab_size - 1 in tokens


def test_the_split_of_a_document_does_not_depend_on_other_documents(tmp_path, written):
    """Adding text must not move held-out documents to the training split."""
    _, documents, found = written
    config = make_config(tmp_path, corpus_dir=str(tmp_path / "more"))
    more = write(config, make_documents(30, seed=1) + documents)
    assert places(found).items() <= places(more).items()


def test_repeated_documents_are_kept_once_and_counted(tmp_path, written):
    config, documents, once = written
    other = make_config(tmp_path, corpus_dir=str(tmp_path / "thrice"))
    found = write(other, documents * 3)
    assert found.shards == once.shards
    num_single = sum(len(document) == 1 for document in documents)
    assert document_counts(found) == counts_of(
        read=180, repeated=120, of_one_sentence=3 * num_single
    )
    assert document_counts(once) == counts_of(read=60, of_one_sentence=num_single)


def test_a_failure_while_writing_leaves_no_file(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(shard_file.digests, "sha256", fail)
    with pytest.raises(OSError, match="no space left"):
        write(one_shard(tmp_path), make_documents(60))
    assert os.listdir(tmp_path / "corpus") == []


# -------------------------------------------------------------- too few documents


def check_fails(config, documents, message):
    with pytest.raises(ConfigError, match=message):
        write(config, documents)
    assert not os.path.exists(os.path.join(config.data.corpus_dir, "manifest.json"))


def test_a_blank_line_between_nearly_all_sentences(tmp_path):
    """google-research/bert#125: every next sentence would be a random one."""
    two = [[f"w{i}", "w2"] for i in range(5)]
    one = [[f"w{i} w{i + 1}"] for i in range(46)]
    check_fails(
        make_config(tmp_path), one + two, "46 of one sentence.*blank lines separate"
    )
    write(make_config(tmp_path), one[1:] + two)  # nine in ten are enough


@pytest.mark.parametrize("weights", [(), (3.0,)])
def test_one_document(tmp_path, weights):
    """Copies of the document do not count as other documents."""
    config = one_shard(tmp_path, source_weights=weights)
    check_fails(
        config, [["w1", "w2", "w3"]], r"contain 1 training document.*write files:GLOB"
    )


@pytest.mark.parametrize("num_shards, count", [(2, 3), (64, 30)])
def test_a_shard_of_fewer_than_two_documents(tmp_path, num_shards, count):
    """Its random next sentences would come from the document itself."""
    config = one_shard(tmp_path, num_shards=num_shards)
    documents = [["w1 w2", f"w{i}", "w3"] for i in range(count)]
    message = (
        rf"num_shards={num_shards} leaves \d+ shard\(s\) with fewer than 2 of"
        rf" the {count} training document.*num_shards=1 and config.data.num_streams=1"
    )
    check_fails(config, documents, message)


@pytest.mark.slow
def test_the_advised_number_of_shards_suits_the_documents(tmp_path):
    (tmp_path / "8").mkdir()
    config = make_config(tmp_path, num_shards=400, num_streams=8)
    documents = [["w1 w2", f"w{i % 50}", f"w{i // 50}"] for i in range(300)]
    check_fails(config, documents, "num_shards=8 and config.data.num_streams=8$")
    write(make_config(tmp_path / "8", num_shards=8, num_streams=8), documents)


def test_nothing_held_out(tmp_path):
    config = make_config(tmp_path, validation_fraction=1e-6)
    check_fails(
        config, make_documents(30) * 3, "validation_fraction=1e-06 holds out none of 30"
    )
    changes = {"next_sentence": False, "num_shards": 1, "num_streams": 1}
    config = changed(config, "data", **changes)
    check_fails(config, make_documents(1), "holds out none of 1 documents; set it to 0")
