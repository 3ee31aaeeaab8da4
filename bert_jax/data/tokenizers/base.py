"""Base class of the tokenizers, the special tokens, and character offsets.

Shapes: V vocabulary.
"""

import abc
import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Callable, Container, Iterable
from typing import ClassVar

import numpy as np
import tokenizers

from bert_jax import storage
from bert_jax.errors import ConfigError

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
TEXT_TOKENS = (PAD, UNK, CLS, SEP)  # those of a model that predicts no masked tokens

# The number of strings in the LRU cache; an entry takes about 700 bytes.
MAX_CACHED = 2**16
MAX_CACHED_CHARS = 64

# Maps sentences to the int32 token ids of each. [UNK] is the only special token that
# text can become.
Encoder = Callable[[list[str]], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Located:
    """Token ids of a text and their character offsets, all int32[n]."""

    ids: np.ndarray
    starts: np.ndarray  # the offset of the first character of each token
    ends: np.ndarray  # the offset after the last character of each token


Locator = Callable[[str], Located]


class LocatingEncoder:
    """Encodes a text to the ids of an encoder and their character offsets.

    The pieces of a string without white space are adjacent, so their lengths determine
    their offsets; a single [UNK] gets the remaining length. If the lengths do not add
    up (a letter was decomposed, or several pieces are [UNK]), each piece has the
    offsets of the whole string.
    """

    def __init__(
        self,
        encode: Encoder,
        strings: re.Pattern[str],
        num_characters: np.ndarray,
        unk: int,
    ):
        """Initializes the encoder.

        `strings` matches the strings of a text that are tokenized separately. Their
        ids, concatenated, are those of the text. num_characters is the number of
        characters that each piece represents, int32[V].
        """
        self._encode, self._strings = encode, strings
        self._num_characters, self._unk = num_characters, unk
        self._cached = functools.lru_cache(MAX_CACHED)(self._locate)

    def __call__(self, text: str) -> Located:
        spans = [match.span() for match in self._strings.finditer(text)]
        strings = [self._locate_cached(text[start:end]) for start, end in spans]
        if not strings:
            nothing = np.empty(0, np.int32)
            return Located(nothing, nothing, nothing)
        sizes = [len(string.ids) for string in strings]
        first = np.repeat(np.array([start for start, _ in spans], np.int32), sizes)
        return Located(
            np.concatenate([string.ids for string in strings]),
            np.concatenate([string.starts for string in strings]) + first,
            np.concatenate([string.ends for string in strings]) + first,
        )

    def _locate_cached(self, string: str) -> Located:
        is_short = len(string) <= MAX_CACHED_CHARS
        return self._cached(string) if is_short else self._locate(string)

    def _locate(self, string: str) -> Located:
        (ids,) = self._encode([string])
        lengths = self._num_characters[ids]
        is_unknown = ids == self._unk
        if is_unknown.sum() == 1:
            lengths = np.where(is_unknown, 0, lengths)
            lengths[is_unknown] = len(string) - lengths.sum()
        if lengths.sum() == len(string) and (lengths[is_unknown] > 0).all():
            ends = np.cumsum(lengths, dtype=np.int32)
            return Located(ids, ends - lengths, ends)
        return Located(ids, np.zeros_like(ids), np.full_like(ids, len(string)))


@dataclasses.dataclass(frozen=True)
class Tokenizer(abc.ABC):
    """Maps text to token ids. A value that can be compared, pickled and saved."""

    # The name of the file in a corpus directory and in an exported model.
    FILE: ClassVar[str]

    vocab: tuple[str, ...]  # pieces in id order
    lowercase: bool

    @property
    def digest(self) -> str:
        """SHA-256 of everything that determines the ids of a text."""
        kind = f"{type(self).__name__} {self.lowercase}\n"
        return hashlib.sha256(kind.encode() + self.content()).hexdigest()

    @property
    def continues_word(self) -> np.ndarray:
        """bool[V], True for pieces that continue the word of the piece before them."""
        return np.array([piece.startswith("##") for piece in self.vocab])

    def id(self, token: str) -> int:
        """Returns the id of a token; the last one if the vocabulary repeats it."""
        return len(self.vocab) - 1 - self.vocab[::-1].index(token)

    @abc.abstractmethod
    def encoder(self) -> Encoder:
        """Builds the encoder, which is expensive; build one per process."""

    @abc.abstractmethod
    def locator(self) -> Locator:
        """Builds a function that also returns the character offsets of the ids."""

    @abc.abstractmethod
    def huggingface(self) -> tokenizers.Tokenizer:
        """Returns an equivalent `tokenizers` pipeline, without special tokens."""

    @abc.abstractmethod
    def content(self) -> bytes:
        """Returns the content of the file."""

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the file atomically into a directory."""
        storage.write(os.path.join(directory, self.FILE), self.content())


def check_special_tokens(
    vocab: Container[str], path: str, required: Iterable[str]
) -> None:
    """Raises ConfigError if a vocabulary lacks a token. `path` names its file."""
    missing = [token for token in required if token not in vocab]
    if missing:
        raise ConfigError(
            f"{path} has no {', '.join(missing)}; use a vocabulary with"
            f" {', '.join(required)}"
        )
