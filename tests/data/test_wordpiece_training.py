"""Tests of bert_jax.data.wordpiece_training."""

import random
import tracemalloc

import pytest

from bert_jax.config import ConfigError
from bert_jax.data import wordpiece, wordpiece_training
from tests.data.test_wordpiece import SPECIAL, encode, make_config


def documents():
    """Words of which many pairs of letters are equally frequent, so ties abound."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 7))) for _ in range(300)]
    return [[" ".join(rng.choices(words, k=12)) for _ in range(5)] for _ in range(40)]


def train(documents, vocab_size, lowercase=True):
    config = make_config(vocab_size=vocab_size, lowercase=lowercase)
    return wordpiece_training.train(documents, config).vocab


def test_trained_vocabulary_has_the_size_asked_for():
    vocab = train(documents(), 120)
    assert len(vocab) == len(set(vocab)) == 120
    assert list(vocab[:5]) == SPECIAL
    assert not any(token.startswith("[unused") for token in vocab)
    wordpiece.validate(vocab, "trained")


def test_what_is_too_long_for_a_word_does_not_hold_up_the_training():
    """The trainer takes minutes for 300,000 letters without a space, else."""
    text = [*documents(), ["x" * 300_000 + " " + "\u4e00" * 300_000]]
    vocab = train(text, 120)
    assert "\u4e00" in vocab and not any("xxx" in token for token in vocab)


def test_words_that_punctuation_alone_parts_are_trained_on():
    """As in Ethiopic, between whose words stands a mark and no space."""
    words = ["\u1230\u120b\u121d", "\u12d3\u1208\u121d"]
    vocab = train([["\u1361".join(words * 60)] * 20], 60)
    assert set(words) <= set(vocab)


def test_too_little_text_leaves_unused_tokens():
    vocab = train([["ab ab"], ["abc"]], 40)
    assert len(vocab) == len(set(vocab)) == 40
    unused = [token for token in vocab if token.startswith("[unused")]
    assert unused == [f"[unused{i}]" for i in range(len(unused))]
    assert list(vocab[-len(unused) :]) == unused
    tokenizer = wordpiece.WordPiece(vocab, lowercase=True)
    assert encode(tokenizer, "abc [unused0]").count("[unused0]") == 0


@pytest.mark.parametrize("vocab_size", [60, 150])
def test_training_twice_gives_the_same_vocabulary(vocab_size):
    """Else two machines that prepare the same text get different ids."""
    first = train(documents(), vocab_size)
    assert all(train(documents(), vocab_size) == first for _ in range(3))


def test_training_does_not_hold_the_text():
    """What Python holds meanwhile is a small part of a text that comes bit by bit."""
    sentences = [" ".join(document) for document in documents()]
    num_bytes = 50 * sum(map(len, sentences))
    tracemalloc.start()
    try:
        train(([sentence[:]] for sentence in sentences * 50), 150)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes > 6e5 and peak < num_bytes / 2


@pytest.mark.parametrize("lowercase", [True, False])
def test_trained_vocabulary_covers_its_text(lowercase):
    text = [["Zebra \u00c9t\u00e9 (quux)."], ["zebra, zebra!"]]
    vocab = train(text, 100, lowercase)
    tokenizer = wordpiece.WordPiece(vocab, lowercase)
    for document in text:
        found = encode(tokenizer, document[0])
        assert "[UNK]" not in found
    assert any(token.strip("#") == "\u00c9" for token in vocab) != lowercase


def test_a_vocabulary_without_room_for_the_characters_is_refused():
    """Special tokens first: a smaller one could even lack [MASK]."""
    with pytest.raises(
        ConfigError, match=r"vocab_size=6 has no room for the 9 .*try 18"
    ):
        train([["a b"]], 6)
    assert len(train([["a b"]], 9)) == 9
