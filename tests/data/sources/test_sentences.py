"""Tests of bert_jax.data.sources.sentences."""

import time

import pytest

from bert_jax.data.sources import sentences


@pytest.mark.parametrize(
    "expected",
    [
        ["One sentence without a stop"],
        ["It rained.", "We stayed in."],
        ["Really?", "Yes!", "Good."],
        ["What?!", "Nothing..."],
        ['He said "Stop."', "She did not."],
        ["(It was late.)", "They left."],
        ["It cost 3.5 euros.", "That is 2.", "40 more came."],
        ["They met.", '"Hello," she said.'],
        ["See www.example.com for more.", "Or ask."],
        ["He came from the U.S.", "The others did not."],
        ["We met at 5 p.m.", "It was late."],
        ["It sells cars, trucks etc.", "They are old."],
        ["So he chose plan B.", "There was no other."],
        ["They sat in the sun.", "Nobody spoke."],
        ["Is it a work of art?", "It is a work of art.", "Look!"],
        ["I say no.", "Never again."],
        ["'So it is,' he said.", "'Is it?'", "'It is.'"],
        ["He waited....", "Nobody came."],
        ["(See above.)", "[And below.]", "«Voilà.»", "“Well.”"],
        ["He won by 3.5%.", "$4.2 were left."],
        ["So did I.", "Then we left."],
        ["1. First of all."],
        ["1. First.", "2. Second.", "10. Last"],
        ["12. (An aside.)", "And on."],
        ["It was 1984.", "We left."],
    ],
    ids=lambda expected: expected[0],
)
def test_ends_at_a_stop_before_a_capital(expected):
    assert sentences.split(" ".join(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith met Mr. Jones on Jan. 5 near St. Paul.",
        "J. R. R. Tolkien wrote it.",
        "Some animals, e.g. Cats and i.e. Dogs, were there.",
        "The U.S. Army and Fig. 3 of vol. 2 show it.",
        "It stopped ... and then went on.",
        "He asked why? and she left.",
        "Version 3.13 of a.b.C is out",
        "J.R.R. Tolkien and J.-P. Sartre never met George W. Bush.",
        "The K.I. Courier had its office in Washington D.C. Monday morning.",
        "It reached No. 1, as p. 12 and Fig. 3 of art. 5 show.",
        "They left at 5 p.m. Malaysian time with Messrs. Hill and Co. Ltd. Osaka.",
        "And then . . . he . . . left us",
        "Prof. Dr. Karl Meyer lives in Mt. Pleasant.",
        "Dr.\u00a0Smith saw “Mrs. Jones”.",
    ],
)
def test_does_not_end_inside_a_sentence(text):
    assert sentences.split(text) == [text]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("你好。再见。", ["你好。", "再见。"]),
        ("何？ はい！じゃ", ["何？", "はい！", "じゃ"]),
        (
            "他走了3.5公里。“累吗？”她问。OK！",
            ["他走了3.5公里。", "“累吗？”", "她问。", "OK！"],
        ),
        ("え？！そう｡終わり．次", ["え？！", "そう｡", "終わり．", "次"]),
        ("「はい。」彼は。", ["「はい。」", "彼は。"]),
        ("Kya? नही। Han.", ["Kya?", "नही।", "Han."]),
    ],
)
def test_stops_of_other_scripts(text, expected):
    assert sentences.split(text) == expected


@pytest.mark.parametrize("text", ["", " ", "\t\n "])
def test_blank_text_has_no_sentences(text):
    assert sentences.split(text) == []


def test_white_space_is_stripped_and_no_word_is_lost():
    text = "  First one.   Second one!\tThird\n one?  And ' \" ( . ) the rest "
    found = sentences.split(text)
    assert found[:2] == ["First one.", "Second one!"]
    assert " ".join(found).split() == text.split()
    assert all(sentence == sentence.strip() for sentence in found)


LONG = {
    "one sentence": "word " * 200_000,
    "abbreviations": "Mr. A " * 20_000,
    "short": "No. " * 20_000,
    "dots": "." * 20_000,
    "spaced dots": ". " * 20_000,
    "open": ". " + "(" * 20_000 + " a",
    "cjk": "。" * 20_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_time_is_linear_in_the_length_of_a_text(text):
    """A line of dot leaders, or a book without a stop, must not take minutes."""
    start = time.process_time()  # excludes the time of other processes
    sentences.split(text)
    assert time.process_time() - start < 2
