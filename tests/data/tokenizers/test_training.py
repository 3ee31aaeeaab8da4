"""Tests of bert_jax.data.tokenizers.training: characters, and WordPiece.

test_sentencepiece.py has those of SentencePiece.
"""

import collections
import random
import tracemalloc

import pytest

from bert_jax.data.tokenizers import training, wordpiece
from bert_jax.errors import ConfigError
from tests.data.tokenizers.test_wordpiece import SPECIAL, encode, make_config

IDEOGRAPHS = [chr(0x4E00 + i) for i in range(3000)]
SYLLABLES = [chr(0xAC00 + i) for i in range(2000)]


def chinese(num_characters, characters=IDEOGRAPHS):
    """Returns sentences in which the i-th character has a weight of 1 / (i + 20)."""
    weights = [1 / (i + 20) for i in range(len(characters))]
    drawn = random.Random(0).choices(characters, weights, k=num_characters)
    return ["".join(drawn[i : i + 30]) for i in range(0, num_characters, 30)]


def count(*texts):
    return collections.Counter("".join(sentence for text in texts for sentence in text))


def share(counts, chosen):
    return sum(counts[c] for c in chosen) / counts.total()


def one(character):
    return 1


def test_coverage_of_a_text():
    counts = count(chinese(100_000))
    chosen = training.choose_characters(counts, 10_000, one)
    assert 0.9995 <= share(counts, chosen) < 0.9996
    assert chosen == training.by_count(counts)[: len(chosen)]


@pytest.mark.parametrize("characters", [IDEOGRAPHS, SYLLABLES])
def test_each_script_is_covered(characters):
    """If only the whole text were covered, a script of 1% of it would lose 5%."""
    text = chinese(50_000, characters)
    both = count(text, ["etaoin"] * 800_000)
    chosen = set(training.choose_characters(both, 100_000, one))
    assert share(count(text), chosen & set(characters)) >= 0.9995


def test_a_script_of_less_than_a_thousandth_is_not_covered_separately():
    text = chinese(600)
    chosen = training.choose_characters(count(text, ["etaoin"] * 200_000), 800, one)
    assert len(chosen) == 100  # an eighth of the vocabulary
    assert len(set("".join(text))) > 300


def test_rare_letters_are_selected_if_there_is_room():
    counts = count(["etaoin"] * 200_000, ["\u00e9\u00df\u03b1"])
    assert set(training.choose_characters(counts, 100, one)) == set(
        "etaoin\u00e9\u00df\u03b1"
    )


@pytest.mark.parametrize("num_pieces, expected", [(1, 750), (2, 375)])
def test_a_quarter_of_the_vocabulary_is_left_to_longer_pieces(num_pieces, expected):
    counts = count(chinese(100_000))
    chosen = training.choose_characters(counts, 1000, lambda _: num_pieces)
    # Up to five places are taken by the special tokens.
    assert expected - 5 <= len(chosen) <= expected
    assert chosen == training.by_count(counts)[: len(chosen)]


def test_a_small_vocabulary_consists_of_characters():
    counts = count(chinese(1000))
    assert len(training.choose_characters(counts, 69, one)) == 64
    with pytest.raises(
        ConfigError, match=r"vocab_size=68 has no room for the 69 .* set it to 138"
    ):
        training.choose_characters(counts, 68, one)


def test_an_empty_text_has_no_characters():
    assert training.choose_characters(collections.Counter(), 5, one) == []


# ------------------------------------------------------------------------ WordPiece


def documents():
    """Returns words with many equally frequent pairs of letters, hence many ties."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 7))) for _ in range(300)]
    return [[" ".join(rng.choices(words, k=12)) for _ in range(5)] for _ in range(40)]


def train(documents, vocab_size, lowercase=True):
    config = make_config(vocab_size=vocab_size, lowercase=lowercase)
    return training.train(documents, config).vocab


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
