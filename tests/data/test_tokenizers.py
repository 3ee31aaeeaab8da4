"""Tests of bert_jax.data.tokenizers."""

import random

import pytest

from bert_jax.config import ConfigError, TokenizerConfig
from bert_jax.data import tokenizers

SPECIAL = list(tokenizers.SPECIAL_TOKENS)


def make_config(**changes):
    values = {
        "kind": "wordpiece",
        "vocab_file": "",
        "vocab_size": 300,
        "lowercase": True,
    }
    return TokenizerConfig(**values | changes)


def wordpiece(*tokens, lowercase=True):
    return tokenizers.WordPiece((*SPECIAL, *tokens), lowercase)


def encode(tokenizer, text):
    ids = tokenizer.build().encode(text).ids
    return [tokenizer.vocab[i] for i in ids]


def documents():
    """Words of which many pairs of letters are equally frequent, so ties abound."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 7))) for _ in range(300)]
    return [[" ".join(rng.choices(words, k=12)) for _ in range(5)] for _ in range(40)]


# ---------------------------------------------------------------- text -> tokens


@pytest.mark.parametrize("lowercase", [True, False])
def test_text_never_becomes_a_special_token(lowercase):
    tokenizer = wordpiece(
        "[", "]", "mask", "MASK", "cls", "CLS", "sep", "SEP", "pad", "PAD", "unk",
        "UNK", "a", lowercase=lowercase
    )  # fmt: skip
    for token in SPECIAL:
        name = token.strip("[]")
        word = name.lower() if lowercase else name
        for text in (token, f"a{token}a", f"a {token} a"):
            found = encode(tokenizer, text)
            assert not set(found) & set(SPECIAL)
            assert "".join(found).strip("a") == f"[{word}]"


def test_longest_piece_is_taken_first():
    tokenizer = wordpiece("un", "##aff", "##able", "##a", "##ffable", "u")
    assert encode(tokenizer, "unaffable") == ["un", "##aff", "##able"]


def test_a_word_that_cannot_be_matched_is_one_unknown():
    tokenizer = wordpiece("run", "##ning", "a")
    assert encode(tokenizer, "a runningx a") == ["a", "[UNK]", "a"]


@pytest.mark.parametrize(
    "length, known", [(100, True), (101, True), (150, True), (200, True), (201, False)]
)
def test_words_of_up_to_200_characters_are_matched(length, known):
    found = encode(wordpiece("a", "##a"), "a" * length)
    assert found == (["a"] + ["##a"] * (length - 1) if known else ["[UNK]"])


def test_lowercase_strips_accents():
    tokenizer = wordpiece("cafe", "uber")
    assert encode(tokenizer, "Caf\u00e9 \u00dcBER cafe\u0301") == [
        "cafe",
        "uber",
        "cafe",
    ]


def test_cased_keeps_case_and_accents():
    tokenizer = wordpiece("Caf\u00e9", "cafe", "Cafe", lowercase=False)
    text = "Caf\u00e9 Cafe cafe CAFE"
    assert encode(tokenizer, text) == ["Caf\u00e9", "Cafe", "cafe", "[UNK]"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a^b$c+d`e", ["a", "^", "b", "$", "c", "+", "d", "`", "e"]),
        ("a\u2014b", ["a", "\u2014", "b"]),
        ("\u4f60\u597d", ["\u4f60", "\u597d"]),
        ("a\tb\nc\rd\u00a0e", ["a", "b", "c", "d", "e"]),
        ("a\u0000\ufffd\u200db", ["ab"]),
    ],
)
def test_words_end_at_punctuation_ideographs_and_white_space(text, expected):
    assert encode(wordpiece(*dict.fromkeys(expected)), text) == expected


def test_digest_depends_on_order_and_case():
    base = wordpiece("a", "b")
    assert base.digest == wordpiece("a", "b").digest
    assert base.digest != wordpiece("b", "a").digest
    assert base.digest != wordpiece("a", "b", lowercase=False).digest
    assert base.digest != wordpiece("a").digest


# -------------------------------------------------------------------- load a file


def write_vocab(path, tokens, end="\n"):
    path.write_bytes("".join(token + end for token in tokens).encode())
    return make_config(vocab_file=str(path), vocab_size=len(tokens))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_load(tmp_path, end):
    tokens = [*SPECIAL, "the", "##s", "caf\u00e9", "\u2028"]
    config = write_vocab(tmp_path / "vocab.txt", tokens, end)
    loaded = tokenizers.load(config)
    assert loaded == tokenizers.WordPiece(tuple(tokens), lowercase=True)
    assert loaded.id("the") == 5


def test_load_without_a_last_line_end(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, "a"]))
    assert (
        len(tokenizers.load(make_config(vocab_file=str(path), vocab_size=6)).vocab) == 6
    )


def test_load_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"vocab_file='.*none.txt' is not a file"):
        tokenizers.load(make_config(vocab_file=str(tmp_path / "none.txt")))


@pytest.mark.parametrize("token", SPECIAL)
def test_load_without_a_special_token(tmp_path, token):
    config = write_vocab(tmp_path / "v.txt", [t for t in [*SPECIAL, "a"] if t != token])
    with pytest.raises(ConfigError) as error:
        tokenizers.load(config)
    assert f"v.txt has no {token}; add" in str(error.value)


@pytest.mark.parametrize(
    "tokens, message",
    [
        ([*SPECIAL, "a", "b", "a"], "v.txt:8 repeats 'a'"),
        ([*SPECIAL, "a", "[MASK]"], r"v.txt:7 repeats '\[MASK\]'"),
        ([*SPECIAL, "a", "", "b"], "v.txt:7 is blank"),
        ([*SPECIAL, "a", ""], "v.txt:7 is blank"),
    ],
)
def test_load_a_repeated_or_blank_line(tmp_path, tokens, message):
    config = write_vocab(tmp_path / "v.txt", tokens)
    with pytest.raises(ConfigError, match=message):
        tokenizers.load(config)


def test_load_wrong_size(tmp_path):
    write_vocab(tmp_path / "v.txt", [*SPECIAL, "a"])
    config = make_config(vocab_file=str(tmp_path / "v.txt"), vocab_size=300)
    with pytest.raises(ConfigError, match="vocab_size=300, .* has 6 tokens"):
        tokenizers.load(config)


def test_load_not_utf8(tmp_path):
    path = tmp_path / "v.txt"
    path.write_bytes("\n".join([*SPECIAL, "\u00e9"]).encode("latin-1"))
    with pytest.raises(ConfigError, match="v.txt' is not UTF-8"):
        tokenizers.load(make_config(vocab_file=str(path)))


# -------------------------------------------------------------------------- train


def test_trained_vocabulary_has_the_size_asked_for():
    vocab = tokenizers.train(documents(), 120, lowercase=True)
    assert len(vocab) == len(set(vocab)) == 120
    assert list(vocab[:5]) == SPECIAL
    assert not any(token.startswith("[unused") for token in vocab)
    tokenizers.validate(vocab, "trained")


def test_too_little_text_leaves_unused_tokens():
    vocab = tokenizers.train([["ab ab"], ["abc"]], 40, lowercase=True)
    assert len(vocab) == len(set(vocab)) == 40
    unused = [token for token in vocab if token.startswith("[unused")]
    assert unused == [f"[unused{i}]" for i in range(len(unused))]
    assert list(vocab[-len(unused) :]) == unused
    tokenizer = tokenizers.WordPiece(vocab, lowercase=True)
    assert encode(tokenizer, "abc [unused0]").count("[unused0]") == 0


@pytest.mark.parametrize("vocab_size", [60, 150])
def test_training_twice_gives_the_same_vocabulary(vocab_size):
    """Else two machines that prepare the same text get different ids."""
    first = tokenizers.train(documents(), vocab_size, lowercase=True)
    assert all(
        tokenizers.train(documents(), vocab_size, lowercase=True) == first
        for _ in range(3)
    )


@pytest.mark.parametrize("lowercase", [True, False])
def test_trained_vocabulary_covers_its_text(lowercase):
    text = [["Zebra \u00c9t\u00e9 (quux)."], ["zebra, zebra!"]]
    vocab = tokenizers.train(text, 100, lowercase)
    tokenizer = tokenizers.WordPiece(vocab, lowercase)
    for document in text:
        found = encode(tokenizer, document[0])
        assert "[UNK]" not in found
    assert any(token.strip("#") == "\u00c9" for token in vocab) != lowercase


def test_a_vocabulary_without_room_for_the_characters_is_refused():
    """Special tokens first: a smaller one could even lack [MASK]."""
    with pytest.raises(
        ConfigError, match=r"vocab_size=6 has no room for the 9 .*try 18"
    ):
        tokenizers.train([["a b"]], 6, True)
    assert len(tokenizers.train([["a b"]], 9, True)) == 9
