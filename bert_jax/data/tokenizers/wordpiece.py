"""WordPiece tokenizer: reads a vocabulary and encodes text as BERT does.

The text rules are those of the released code, with Python's own Unicode tables: words
have up to 200 characters, and text never becomes a special token, not even a literal
"[MASK]".

Source: google-research/bert tokenization.py.
"""

import dataclasses
import functools
import re
import string
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
import tokenizers

from bert_jax.data.tokenizers import base
from bert_jax.data.tokenizers.base import UNK
from bert_jax.errors import ConfigError

# google-research/bert tokenization.py:303; the `tokenizers` library's default is 100.
MAX_CHARS_PER_WORD = 200
# The number of cache entries, of about 200 bytes each. 28 MB of English books contain
# 191,430 distinct strings between white space.
MAX_CACHED = 2**18
# Longer strings between white space seldom occur twice.
MAX_CACHED_CHARS = 64


@dataclasses.dataclass(frozen=True)
class WordPiece(base.Tokenizer):
    """A WordPiece vocabulary. `lowercase` also removes accents."""

    FILE: ClassVar[str] = "vocab.txt"

    def encoder(self) -> base.Encoder:
        return _Encoder(self)

    def huggingface(self) -> tokenizers.Tokenizer:
        # The Unicode tables of the library are older than Python's, so the ids of a few
        # texts differ: the library does not split words at punctuation added after
        # Unicode 8 or at the ideographs U+2B820 to U+2B91F, does not remove accents
        # added after Unicode 8, and does not treat a capital sigma before an apostrophe
        # as the end of its word.
        tokenizer = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(
                {token: i for i, token in enumerate(self.vocab)},
                unk_token=UNK,
                max_input_chars_per_word=MAX_CHARS_PER_WORD,
            )
        )
        set_text_rules(tokenizer, self.lowercase)
        tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##")
        return tokenizer

    def pieces_lost_by_lowercase(self) -> list[str]:
        """Returns the pieces that lower-cased text without accents never becomes."""
        lower = dataclasses.replace(self, lowercase=True)
        split = _Encoder(lower).split
        words = [p for p in self.vocab if not re.fullmatch(r"\[.*\]|<.*>", p)]
        return [p for p in words if "".join(split(p)) != p]

    def content(self) -> bytes:
        return "".join(piece + "\n" for piece in self.vocab).encode()

    def pieces_of(self, tokens: Iterable[str]) -> list[np.ndarray]:
        """Splits tokens of another vocabulary into pieces; "##x" continues a word."""
        encode = _Encoder(self)
        unk = np.array([self.id(UNK)], np.int32)

        def ids(token: str) -> np.ndarray:
            if token.startswith("##"):
                return np.frombuffer(encode.later_ids(token[2:]), np.int32)
            return encode([token])[0]

        return [found if len(found := ids(token)) else unk for token in tokens]


def tokens_in(content: bytes, path: str) -> tuple[str, ...]:
    """Returns the tokens of a vocab.txt in id order.

    A line ends at LF or CRLF only, because U+2028 and the like can be tokens. Of a
    repeated token the last line counts; text never becomes a blank one.
    """
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line} is not UTF-8; save the file as UTF-8"
        ) from None
    vocab = tuple(line.rstrip("\r") for line in lines)
    return vocab[:-1] if vocab[-1] == "" else vocab


# The library lower-cases each character separately, so it never writes a final sigma.
_FINAL_SIGMA = "(?<=\\p{L})\u03a3(?!\\p{L})"


def set_text_rules(tokenizer: tokenizers.Tokenizer, lowercase: bool) -> None:
    """Sets the text rules of the released code, as far as the library supports them."""
    normalizers = [
        # The library's clean_text would also drop private and unassigned characters.
        _replace(f"[{character_classes()['dropped']}]", ""),
        tokenizers.normalizers.BertNormalizer(
            clean_text=False,
            handle_chinese_chars=True,
            strip_accents=lowercase,
            lowercase=lowercase,
        ),
    ]
    if lowercase:
        normalizers.insert(1, _replace(_FINAL_SIGMA, "\u03c2"))
    tokenizer.normalizer = tokenizers.normalizers.Sequence(normalizers)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()


def _replace(pattern: str, by: str) -> tokenizers.normalizers.Replace:
    return tokenizers.normalizers.Replace(tokenizers.Regex(pattern), by)


# Text is cleaned of these characters first. str.split would split at them.
_SPLITTING_CONTROLS = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
# google-research/bert tokenization.py:274, _is_chinese_char.
IDEOGRAPH = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f"
)
_IDEOGRAPHS = re.compile(f"[{IDEOGRAPH}]+")
_AROUND_IDEOGRAPHS = re.compile(rf"[{IDEOGRAPH}]|[^\s{IDEOGRAPH}]+")


def are_ideographs(text: str) -> bool:
    """Returns whether a text consists of ideographs and is not empty."""
    return _IDEOGRAPHS.fullmatch(text) is not None


def strings(sentence: str) -> list[str]:
    """Splits a sentence at white space and around ideographs."""
    if not sentence.isprintable():
        sentence = _SPLITTING_CONTROLS.sub("", sentence)
    if sentence.isascii() or not _IDEOGRAPHS.search(sentence):
        return sentence.split()
    return _AROUND_IDEOGRAPHS.findall(sentence)


class _Cache(dict[str, bytes]):
    """Maps strings to their int32 ids as bytes; it is cleared when it is full."""

    def __init__(self, find: Callable[[str], bytes]):
        super().__init__()
        self._find = find

    def __missing__(self, text: str) -> bytes:
        ids = self._find(text)
        if len(text) <= MAX_CACHED_CHARS:
            if len(self) >= MAX_CACHED:
                self.clear()
            self[text] = ids
        return ids


_ASCII_WORD = re.compile("[0-9A-Za-z]+|[^0-9A-Za-z]")


class _Encoder:
    """Splits sentences into words, and words greedily into the longest pieces.

    The ids of a string between white space do not depend on its context, so they are
    cached. Each ideograph is a word, with or without white space around it. Ids are
    int32 as bytes, because joining bytes is fast in Python.
    """

    def __init__(self, tokenizer: WordPiece):
        self._lowercase = tokenizer.lowercase
        ids = np.arange(len(tokenizer.vocab), dtype=np.int32)
        # tolist converts each element of type "V4" to a `bytes` of length 4.
        self._first = dict(zip(tokenizer.vocab, ids.view("V4").tolist(), strict=True))
        continuing = (piece for piece in self._first if piece.startswith("##"))
        self._later = {piece[2:]: self._first[piece] for piece in continuing}
        self._unk = self._first[UNK]
        self._longest_first = _longest_by_prefix(self._first)
        self._longest_later = _longest_by_prefix(self._later)
        self._match = _Cache(
            lambda word: self._pieces(word, self._first, self._longest_first)
        ).__getitem__
        self._ids_of = _Cache(self._string_ids)
        classes = character_classes()
        punctuation = classes["punctuation"]
        self._dropped = re.compile(f"[{classes['dropped']}]")
        self._accents = re.compile(f"[{classes['accents']}]")
        self._word = re.compile(f"[{punctuation}]|[^{punctuation}]+")

    def __call__(self, sentences: list[str]) -> list[np.ndarray]:
        find = self._ids_of.__getitem__
        return [
            np.frombuffer(b"".join(map(find, strings(sentence))), np.int32)
            for sentence in sentences
        ]

    def _string_ids(self, text: str) -> bytes:
        """Returns the ids of a string without white space."""
        if not (text.isascii() and text.isprintable()):
            return b"".join(map(self._match, self.split(text)))
        if self._lowercase:
            text = text.lower()
        if text.isalnum():
            return self._match(text)
        if text[:-1].isalnum():  # usually followed by a comma or a full stop
            return self._match(text[:-1]) + self._match(text[-1])
        return b"".join(map(self._match, _ASCII_WORD.findall(text)))

    def split(self, text: str) -> list[str]:
        text = self._dropped.sub("", text)
        if self._lowercase:
            text = unicodedata.normalize("NFD", text.lower())
            text = self._accents.sub("", text)
        return self._word.findall(text)

    def later_ids(self, word: str) -> bytes:
        """Returns the ids of a string that continues a word."""
        return self._pieces(word, self._later, self._longest_later)

    def _pieces(
        self, word: str, pieces: dict[str, bytes], longest: dict[str, int]
    ) -> bytes:
        if len(word) > MAX_CHARS_PER_WORD:
            return self._unk
        ids, start = [], 0
        while start < len(word):
            prefix = word[start : start + _PREFIX]
            end = min(len(word), start + longest.get(prefix, _PREFIX - 1))
            while (found := pieces.get(word[start:end])) is None:
                end -= 1
                if end <= start:
                    return self._unk
            ids.append(found)
            start, pieces, longest = end, self._later, self._longest_later
        return b"".join(ids)


# The length of the prefixes for which the longest piece is known.
_PREFIX = 3


def _longest_by_prefix(pieces: Iterable[str]) -> dict[str, int]:
    """Returns the length of the longest piece with each prefix."""
    longest: dict[str, int] = {}
    for piece in pieces:
        prefix = piece[:_PREFIX]
        if len(prefix) == _PREFIX:
            longest[prefix] = max(len(piece), longest.get(prefix, 0))
    return longest


@functools.cache
def character_classes() -> dict[str, str]:
    """Returns the classes of characters: dropped, accents and punctuation.

    Each is the content of [...] in a regular expression. Control and format characters
    are dropped, except tab and line ends, which are white space; private characters are
    kept. Every ASCII character that is not a letter or digit is punctuation.
    """
    kinds = {"Cc": "dropped", "Cf": "dropped", "Mn": "accents"}
    codes: dict[str, list[int]] = {"dropped": [0xFFFD], "accents": []}
    codes["punctuation"] = [ord(c) for c in string.punctuation if c in "$+<=>^`|~"]
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        kind = "punctuation" if category[0] == "P" else kinds.get(category)
        if kind and chr(code) not in "\t\n\r":
            codes[kind].append(code)
    return {kind: _ranges(codes[kind]) for kind in codes}


def _ranges(codes: list[int]) -> str:
    ranges: list[list[int]] = []
    for code in sorted(codes):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(
        f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges
    )
