"""Base class of the tokenizers, the special tokens, and character offsets.

Shapes: V vocabulary.
"""

import abc
import dataclasses
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

# Surrogates without their other half, which the `tokenizers` library refuses.
SURROGATE = re.compile("[\ud800-\udfff]")

# Maps sentences to the int32 token ids of each. [UNK] is the only special token that
# text can become.
Encoder = Callable[[list[str]], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Located:
    """Token ids of a text and their character offsets, all int32[n]."""

    ids: np.ndarray
    starts: np.ndarray  # the offset of the first character of each token
    ends: np.ndarray  # the offset after the last character of each token


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

    def locator(self) -> Callable[[str], Located]:
        """Builds a function that returns the ids of `huggingface` and their offsets."""
        tokenizer, ids_V = self._of_text()
        unk = self.id(UNK)

        def locate(text: str) -> Located:
            valid = SURROGATE.sub("\ufffd", text)
            encoding = tokenizer.encode(valid, add_special_tokens=False)
            ids_of_text = ids_V[encoding.ids].astype(np.int32)
            starts, ends = np.array(encoding.offsets, np.int32).reshape(-1, 2).T
            # A piece of SentencePiece has the offset of the space before its word.
            is_space = np.array([text[i : i + 1].isspace() for i in starts], bool)
            starts = starts + (is_space & (ids_of_text != unk)).astype(np.int32)
            nexts = np.append(starts[1:], len(text))
            # The library gives an [UNK] the offsets of its first character only.
            for i in np.flatnonzero(ids_of_text == unk):
                following = text[starts[i] : nexts[i]]
                ends[i] = max(ends[i], starts[i] + len(following.rstrip()))
            return Located(ids_of_text, starts, ends)

        return locate

    def _of_text(self) -> tuple[tokenizers.Tokenizer, np.ndarray]:
        """Returns a tokenizer of the library, and int[V], our ids for its ids."""
        return self.huggingface(), np.arange(len(self.vocab))

    @abc.abstractmethod
    def huggingface(self) -> tokenizers.Tokenizer:
        """Returns an equivalent `tokenizers` pipeline, without special tokens."""

    @abc.abstractmethod
    def content(self) -> bytes:
        """Returns the content of the file."""

    def save(self, directory: str | os.PathLike[str]) -> None:
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
