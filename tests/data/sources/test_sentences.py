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
        [
            "(See above.)",
            "[And below.]",
            "\u00abVoil\u00e0.\u00bb",
            "\u201cWell.\u201d",
        ],
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
        "Dr.\u00a0Smith saw \u201cMrs. Jones\u201d.",
    ],
)
def test_does_not_end_inside_a_sentence(text):
    assert sentences.split(text) == [text]


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "\u4f60\u597d\u3002\u518d\u89c1\u3002",
            ["\u4f60\u597d\u3002", "\u518d\u89c1\u3002"],
        ),
        (
            "\u4f55\uff1f \u306f\u3044\uff01\u3058\u3083",
            ["\u4f55\uff1f", "\u306f\u3044\uff01", "\u3058\u3083"],
        ),
        (
            "\u4ed6\u8d70\u4e863.5\u516c\u91cc\u3002\u201c\u7d2f\u5417\uff1f\u201d\u5979\u95ee\u3002OK\uff01",
            [
                "\u4ed6\u8d70\u4e863.5\u516c\u91cc\u3002",
                "\u201c\u7d2f\u5417\uff1f\u201d",
                "\u5979\u95ee\u3002",
                "OK\uff01",
            ],
        ),
        (
            "\u3048\uff1f\uff01\u305d\u3046\uff61\u7d42\u308f\u308a\uff0e\u6b21",
            [
                "\u3048\uff1f\uff01",
                "\u305d\u3046\uff61",
                "\u7d42\u308f\u308a\uff0e",
                "\u6b21",
            ],
        ),
        (
            "\u300c\u306f\u3044\u3002\u300d\u5f7c\u306f\u3002",
            ["\u300c\u306f\u3044\u3002\u300d", "\u5f7c\u306f\u3002"],
        ),
        (
            "Kya? \u0928\u0939\u0940\u0964 Han.",
            ["Kya?", "\u0928\u0939\u0940\u0964", "Han."],
        ),
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


@pytest.mark.parametrize(
    "text",
    [
        "word " * 200_000,
        "Mr. A " * 20_000,
        "No. " * 20_000,
        "." * 20_000,
        ". " * 20_000,
        ". " + "(" * 20_000 + " a",
        "\u3002" * 20_000,
    ],
    ids=[
        "one sentence",
        "abbreviations",
        "short",
        "dots",
        "spaced dots",
        "open",
        "cjk",
    ],
)
def test_time_is_linear_in_the_length_of_a_text(text):
    """A line of dot leaders, or a book without a stop, must not take minutes."""
    start = time.process_time()  # excludes the time of other processes
    sentences.split(text)
    assert time.process_time() - start < 2
