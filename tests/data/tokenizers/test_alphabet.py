"""Tests of bert_jax.data.tokenizers.alphabet."""

import collections
import random

import pytest

from bert_jax.data.tokenizers import alphabet
from bert_jax.errors import ConfigError

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
    chosen = alphabet.choose(counts, 10_000, one)
    assert 0.9995 <= share(counts, chosen) < 0.9996
    assert chosen == alphabet.by_count(counts)[: len(chosen)]


@pytest.mark.parametrize("characters", [IDEOGRAPHS, SYLLABLES])
def test_each_script_is_covered(characters):
    """If only the whole text were covered, a script of 1% of it would lose 5%."""
    text = chinese(50_000, characters)
    both = count(text, ["etaoin"] * 800_000)
    chosen = set(alphabet.choose(both, 100_000, one))
    assert share(count(text), chosen & set(characters)) >= 0.9995


def test_a_script_of_less_than_a_thousandth_is_not_covered_separately():
    text = chinese(600)
    chosen = alphabet.choose(count(text, ["etaoin"] * 200_000), 800, one)
    assert len(chosen) == 100  # an eighth of the vocabulary
    assert len(set("".join(text))) > 300


def test_rare_letters_are_selected_if_there_is_room():
    counts = count(["etaoin"] * 200_000, ["\u00e9\u00df\u03b1"])
    assert set(alphabet.choose(counts, 100, one)) == set("etaoin\u00e9\u00df\u03b1")


@pytest.mark.parametrize("num_pieces, expected", [(1, 750), (2, 375)])
def test_a_quarter_of_the_vocabulary_is_left_to_longer_pieces(num_pieces, expected):
    counts = count(chinese(100_000))
    chosen = alphabet.choose(counts, 1000, lambda _: num_pieces)
    # Up to five places are taken by the special tokens.
    assert expected - 5 <= len(chosen) <= expected
    assert chosen == alphabet.by_count(counts)[: len(chosen)]


def test_a_small_vocabulary_consists_of_characters():
    counts = count(chinese(1000))
    assert len(alphabet.choose(counts, 69, one)) == 64
    with pytest.raises(
        ConfigError, match=r"vocab_size=68 has no room for the 69 .* set it to 138"
    ):
        alphabet.choose(counts, 68, one)


def test_an_empty_text_has_no_characters():
    assert alphabet.choose(collections.Counter(), 5, one) == []
