"""Units follow SQuAD (words) and CMRC (characters); values are computed by hand."""

import pytest

from bert_jax.finetuning.answer_units import UNITS

WORDS, CHARACTERS = UNITS["words"], UNITS["characters"]


def test_words_ignore_case_articles_and_punctuation():
    assert WORDS.normalize("The  U.S.-led, an(d) a Band") == "usled and band"
    assert WORDS.split("A river, the Rhine!") == ["river", "rhine"]


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("", []),
        (
            "\u300a\u4e09\u56fd\u6f14\u4e49\u300b\u3002",
            ["\u4e09", "\u56fd", "\u6f14", "\u4e49"],
        ),
        ("NBA\u7403\u961f 1996-97", ["nba", "\u7403", "\u961f", "199697"]),
        ("3.5%\uff0c10,000\u5143", ["3.5", "%", "10,000", "\u5143"]),
        ("(ab) don't.", ["(", "ab", ")", "don't", "."]),
        (
            "\u6771\u4eac\u30bf\u30ef\u30fc\u3067\u3059\u3001",
            list("\u6771\u4eac\u30bf\u30ef\u30fc\u3067\u3059"),
        ),
        ("\U00020000\u3006caf\u00e9", ["\U00020000", "\u3006", "caf\u00e9"]),
        ("\uc11c\uc6b8 \uc2dc", ["\uc11c\uc6b8", "\uc2dc"]),
    ],
)
def test_characters_split_ideographs_and_kana_but_not_other_words(text, units):
    assert CHARACTERS.split(text) == units


@pytest.mark.parametrize(
    ("answer", "right", "f1"),
    [
        ("\u5317\u4eac", "\u5317\u4eac", 1.0),
        ("\u5317\u4eac\u3002", "\u300c\u5317\u4eac\u300d", 1.0),
        ("\u5317\u4eac\u5e02", "\u5317\u4eac", 2 * 2 / 5),
        # Only the longest common run counts: c d of a b x c d.
        ("\u4e00\u4e8c\u4e94\u4e09\u56db", "\u4e00\u4e8c\u4e09\u56db", 2 * 2 / 9),
        ("\u4eac\u5317", "\u5317\u4eac", 2 * 1 / 4),
        ("New York\u5e02", "new york", 2 * 2 / 5),
        ("\u4e00", "\u4e8c", 0.0),
        ("", "\u4e00", 0.0),
        ("\u3002", "\uff01", 0.0),
    ],
)
def test_f1_of_characters_by_hand(answer, right, f1):
    assert CHARACTERS.f1(answer, right) == pytest.approx(f1)
    assert CHARACTERS.f1(right, answer) == pytest.approx(f1)


def test_exact_match_of_characters_ignores_punctuation_and_case():
    assert CHARACTERS.exact_match("\u300aABC\u300b\u3002", " abc") == 1.0
    assert CHARACTERS.exact_match("1996-1997\u5e74", "19961997\u5e74") == 1.0
    assert CHARACTERS.exact_match("\u5317 \u4eac", "\u5317\u4eac") == 0.0


def test_frequent_characters_count():
    text = "\u7684\u4e00" * 200  # long enough for difflib's popularity heuristic
    assert CHARACTERS.f1(text, text) == 1.0
