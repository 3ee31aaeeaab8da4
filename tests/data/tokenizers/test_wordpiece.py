"""Tests of bert_jax.data.tokenizers.wordpiece."""

import random
import string
import unicodedata

import numpy as np
import pytest

from bert_jax.config import TokenizerConfig
from bert_jax.data.tokenizers import tokenizers
from bert_jax.data.tokenizers import wordpiece as wordpiece_lib
from bert_jax.errors import ConfigError
from tests.conftest import slow

SPECIAL = list(tokenizers.SPECIAL_TOKENS)


def make_config(kind="wordpiece", vocab_size=300, **changes):
    values = {"vocab_file": "", "lowercase": True} | changes
    return TokenizerConfig(kind=kind, vocab_size=vocab_size, **values)


def wordpiece(*tokens, lowercase=True):
    return wordpiece_lib.WordPiece((*SPECIAL, *tokens), lowercase)


def encode(tokenizer, text):
    (ids,) = tokenizer.encoder()([text])
    assert ids.dtype == np.int32
    return [tokenizer.vocab[i] for i in ids]


def reference(tokenizer, text):
    """Tokenizes by the released rules, one character at a time."""
    cleaned = ""
    for character in text:
        category = unicodedata.category(character)
        if character in " \t\n\r" or category == "Zs":
            cleaned += " "
        elif category in ("Cc", "Cf") or character in "\0\ufffd":
            continue
        elif is_ideograph(ord(character)):
            cleaned += f" {character} "
        else:
            cleaned += character
    tokens = []
    for word in cleaned.split():
        if tokenizer.lowercase:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        apart = "".join(f" {c} " if is_punctuation(c) else c for c in word)
        for part in apart.split():
            tokens += longest_pieces(tokenizer.vocab, part)
    return tokens


def is_ideograph(code):
    return any(
        first <= code <= last
        for first, last in (
            (0x4E00, 0x9FFF),
            (0x3400, 0x4DBF),
            (0x20000, 0x2A6DF),
            (0x2A700, 0x2B73F),
            (0x2B740, 0x2B81F),
            (0x2B820, 0x2CEAF),
            (0xF900, 0xFAFF),
            (0x2F800, 0x2FA1F),
        )
    )


def is_punctuation(character):
    return character in string.punctuation or unicodedata.category(
        character
    ).startswith("P")


def longest_pieces(vocab, word):
    tokens, rest = [], word
    while rest and len(word) <= 200:
        mark = "##" if tokens else ""
        lengths = [n for n in range(len(rest), 0, -1) if mark + rest[:n] in vocab]
        if not lengths:
            return ["[UNK]"]
        tokens.append(mark + rest[: lengths[0]])
        rest = rest[lengths[0] :]
    return tokens or ["[UNK]"]


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


@pytest.mark.parametrize(
    "length, known", [(100, True), (101, True), (150, True), (200, True), (201, False)]
)
def test_words_of_up_to_200_characters_are_matched(length, known):
    found = encode(wordpiece("a", "##a"), "a" * length)
    assert found == (["a"] + ["##a"] * (length - 1) if known else ["[UNK]"])


HARD = [
    "",
    " \t\n ",
    "The [MASK] of [SEP][CLS], [unused0] ##ing",
    "a\x00b a\x0bb a\x0cb a\x1cb a\x1fb a\x85b a\u200bb a\u00adb a\u180eb \x1c",
    "a\u2028b a\u2029b a\u3000b a\u00a0b a\u1680b a\ufeffb a\ufffdb \ufffd",
    "a\ue000b \uf0ee a\U000f0000b a\u0378b",
    "\u4f60\u597d,abc\u4e16x \u3042\u4e00\u30a2\u200b\u4e01\x1c\u4e02",
    "a\U00020000b a\U0002b820b a\U0002ceb0b a\uf900b \uf900",
    "\u039f\u0394\u039f\u03a3 \u03a3 \u039f\u03a3\u0391 \u039f\u03a3'",
    "\u039f\u03a3'\u0391",
    "\u0130stanbul I\u0131 \u1e9e \u00df \ufb01 \u01c4 \u212b \u2126",
    "caf\u00e9 cafe\u0301 \u0301a \u0301 e\u0301\u0327 \ud55c\uad6d \u0e01\u0e33\u0e31",
    "a^b$c+d`e|f~g<h>i=j a_b a\u2014b \u00bfa\u00ab \u055a\u2e5d\u20ac",
    "a" * 200 + " " + "a" * 201 + " " + "ab," * 90,
]  # fmt: skip


def characters_of_hard():
    """Returns a vocabulary of all characters of HARD, and few longer pieces."""
    texts = HARD + [unicodedata.normalize("NFD", text.lower()) for text in HARD]
    found = sorted({c for text in texts for c in text} - set(" \t\n\r"))
    return [*found, *(f"##{c}" for c in found), "ab", "##ab"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_hard_cases_equal_the_slow_reference(lowercase):
    tokenizer = wordpiece(*characters_of_hard(), lowercase=lowercase)
    encode_all = tokenizer.encoder()
    for _ in range(2):  # the second time from the cache
        for text, ids in zip(HARD, encode_all(HARD), strict=True):
            found = [tokenizer.vocab[i] for i in ids]
            assert found == reference(tokenizer, text), ascii(text)


@pytest.mark.parametrize("lowercase", [True, slow(False)])
def test_every_character_is_dropped_kept_or_split_at_as_in_the_reference(lowercase):
    """Tests all characters, but only every 89th letter or unassigned character."""
    tokenizer = wordpiece("a", "##b", "b", lowercase=lowercase)
    texts = [
        f"a{chr(code)}b"
        for code in range(0x110000)
        if unicodedata.category(chr(code)) not in ("Lo", "Cn", "Co", "Cs")
        or code % 89 == 0
    ]
    for text, ids in zip(texts, tokenizer.encoder()(texts), strict=True):
        found = [tokenizer.vocab[i] for i in ids]
        assert found == reference(tokenizer, text), ascii(text)


def test_random_text_equals_the_slow_reference(monkeypatch):
    """The cache is so small that it is cleared many times."""
    monkeypatch.setattr(wordpiece_lib, "MAX_CACHED", 50)
    monkeypatch.setattr(wordpiece_lib, "MAX_CACHED_CHARS", 9)
    rng = random.Random(0)
    alphabet = "abAB,.- \t\u00e9\u0301\u00c9\u4f60\u3042\u200b\x1c\ue000\u0131"
    texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 40))) for _ in range(3000)]
    tokenizer = wordpiece("a", "b", "ab", "##a", "##b", "##ba", "e", "\u4f60", ",")
    encode_all = tokenizer.encoder()
    for text, ids in zip(texts, encode_all(texts), strict=True):
        assert [tokenizer.vocab[i] for i in ids] == reference(tokenizer, text)
    assert 0 < len(encode_all._ids_of) <= 50
    assert max(map(len, encode_all._ids_of)) <= 9


@pytest.mark.parametrize("lowercase", [True, False])
def test_exported_pipeline_gives_the_same_ids(lowercase):
    """The exceptions are those listed in `WordPiece.huggingface`."""
    tokenizer = wordpiece(*characters_of_hard(), lowercase=lowercase)
    exported = tokenizer.huggingface()
    words = [word for text in HARD for word in text.split(" ")]
    assert [
        word
        for word, ids in zip(words, tokenizer.encoder()(words), strict=True)
        if exported.encode(word).ids != ids.tolist()
    ] == [
        "a\U0002b820b",
        *(["\u039f\u03a3'\u0391"] if lowercase else []),
        "\u055a\u2e5d\u20ac",
    ]


def test_continues_word():
    tokenizer = wordpiece("a", "##a", "#", "##", "[unused0]")
    found = tokenizer.continues_word
    assert found.dtype == bool
    assert found.tolist() == [False] * 5 + [False, True, False, True, False]


def test_tokens_of_another_vocabulary_are_split_into_pieces():
    tokenizer = wordpiece("un", "##able", "##a", "a", "b", "##b", "-")
    tokens = ["unable", "Unable", "##able", "##ab", "a-b", "##x", "\u200b", "able"]
    pieces = [[tokenizer.vocab[i] for i in ids] for ids in tokenizer.pieces_of(tokens)]
    assert pieces == [
        ["un", "##able"],
        ["un", "##able"],
        ["##able"],
        ["##a", "##b"],
        ["a", "-", "b"],
        ["[UNK]"],
        ["[UNK]"],  # the token is empty after cleaning
        ["[UNK]"],
    ]


# -------------------------------------------------------------------- load a file


def write_vocab(path, tokens, end="\n"):
    path.write_bytes("".join(token + end for token in tokens).encode())
    return make_config(vocab_file=str(path), vocab_size=len(tokens))


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_load(tmp_path, end, start):
    """A byte order mark is not part of the first token."""
    tokens = [*SPECIAL, "the", "##s", "caf\u00e9", "\u2028"]
    path = tmp_path / "vocab.txt"
    config = write_vocab(path, tokens, end)
    path.write_bytes(start + path.read_bytes())
    loaded = tokenizers.load(config)
    assert loaded == wordpiece_lib.WordPiece(tuple(tokens), lowercase=True)
    assert loaded.id("the") == 5


@pytest.mark.parametrize("token", SPECIAL)
def test_load_without_a_special_token(tmp_path, token):
    config = write_vocab(tmp_path / "v.txt", [t for t in [*SPECIAL, "a"] if t != token])
    with pytest.raises(ConfigError) as error:
        tokenizers.load(config)
    assert f"v.txt has no {token}; use a vocabulary with" in str(error.value)


def test_line_numbers_are_ids_although_lines_repeat_or_are_blank(tmp_path):
    """As in transformers: the last line of a token counts."""
    tokens = [*SPECIAL, "a", "", "b", "a", "##b", "[MASK]", "##b", ""]
    tokenizer = tokenizers.load(write_vocab(tmp_path / "v.txt", tokens))
    assert tokenizer.vocab == tuple(tokens)
    (ids,) = tokenizer.encoder()(["a ab b"])
    assert ids.tolist() == [8, 8, 11, 7]
    assert tokenizer.id("[MASK]") == 10
    (ids_of_library,) = tokenizer.huggingface().encode_batch(["a ab b"])
    assert ids_of_library.ids == ids.tolist()


def test_load_not_utf8(tmp_path):
    path = tmp_path / "v.txt"
    path.write_bytes("\n".join([*SPECIAL, "\u00e9"]).encode("latin-1"))
    with pytest.raises(ConfigError, match="v.txt:6 is not UTF-8"):
        tokenizers.load(make_config(vocab_file=str(path)))
