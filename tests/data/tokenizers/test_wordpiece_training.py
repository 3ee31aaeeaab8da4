"""Tests of bert_jax.data.tokenizers.wordpiece_training."""

import random
import tracemalloc

import pytest

from bert_jax.data.tokenizers import wordpiece, wordpiece_training
from bert_jax.errors import ConfigError
from tests.data.tokenizers.test_alphabet import IDEOGRAPHS, chinese
from tests.data.tokenizers.test_wordpiece import SPECIAL, encode, make_config


def documents():
    """Returns words with many equally frequent pairs of letters, hence many ties."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 7))) for _ in range(300)]
    return [[" ".join(rng.choices(words, k=12)) for _ in range(5)] for _ in range(40)]


def train(documents, vocab_size, lowercase=True):
    config = make_config(vocab_size=vocab_size, lowercase=lowercase)
    return wordpiece_training.train(documents, config).vocab


def test_trained_vocabulary_has_vocab_size_tokens():
    vocab = train(documents(), 120)
    assert len(vocab) == len(set(vocab)) == 120
    assert list(vocab[:5]) == SPECIAL
    assert not any(token.startswith("[unused") for token in vocab)


def test_strings_longer_than_a_word_are_dropped():
    """The trainer would take minutes for 300,000 letters without a space."""
    text = [*documents(), ["x" * 300_000 + " " + "\u4e00" * 300_000]]
    vocab = train(text, 120)
    assert "\u4e00" in vocab and not any("xxx" in token for token in vocab)


def test_words_separated_by_punctuation_only_are_trained_on():
    """Ethiopic words are separated by a mark without a space."""
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
    """Otherwise two machines that prepare the same text would get different ids."""
    first = train(documents(), vocab_size)
    assert all(train(documents(), vocab_size) == first for _ in range(3))


def test_training_does_not_keep_the_text_in_memory():
    """The peak memory of Python is a fraction of the size of the text."""
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


def test_a_vocabulary_without_room_for_the_characters_is_an_error():
    """A smaller vocabulary could even lack [MASK]."""
    with pytest.raises(
        ConfigError, match=r"vocab_size=6 has no room for the 9 .*set it to 18"
    ):
        train([["a b"]], 6)
    assert len(train([["a b"]], 9)) == 9


# ---------------------------------------------------------------- characters


def unknown_share(vocab, sentences, lowercase=True):
    tokenizer = wordpiece.WordPiece(vocab, lowercase)
    ids = [i for found in tokenizer.encoder()(sentences) for i in found.tolist()]
    return ids.count(tokenizer.id("[UNK]")) / len(ids)


def test_ideographs_are_covered_and_never_inside_words():
    """Regression test: at most an eighth of the vocabulary, 500 of 3,000, was used."""
    text = chinese(100_000)
    vocab = train([text], 4000)
    assert unknown_share(vocab, text) < 0.001
    assert not any(
        c in piece for piece in vocab for c in IDEOGRAPHS if piece[:2] == "##"
    )


def test_room_that_longer_pieces_do_not_need_goes_to_characters():
    text = chinese(100_000)
    vocab = train([text], 2000)
    assert sum(map(wordpiece.are_ideographs, vocab)) == 2000 - len(SPECIAL)
    rare = train([["ab " * 5000 + "\u4e00 \u00df"]], 40)
    assert {"\u4e00", "\u00df", "##\u00df", "[unused0]"} <= set(rare)
