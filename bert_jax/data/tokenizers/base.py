"""Base class of the tokenizers, and the special tokens.

Shapes: V vocabulary.
"""

import abc
import dataclasses
import hashlib
import os
from collections.abc import Callable, Container, Iterable, Iterator
from typing import ClassVar

import numpy as np
import tokenizers

from bert_jax import storage
from bert_jax.errors import ConfigError

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
TEXT_TOKENS = (PAD, UNK, CLS, SEP)  # those of a model that predicts no masked tokens

# Maps sentences to the int32 token ids of each. [UNK] is the only special token that
# text can become.
Encoder = Callable[[list[str]], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Located:
    """Token ids of a text and their character offsets.

    Attributes:
      ids: int32[n].
      starts: int32[n], the offset of the first character of each token.
      ends: int32[n], the offset after the last character of each token.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


Locator = Callable[[str], Located]


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
    @abc.abstractmethod
    def continues_word(self) -> np.ndarray:
        """bool[V], True for pieces that continue the word of the piece before them."""

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
        """Returns the content of the tokenizer's file."""

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


def text_sample(documents: Iterable[list[str]], max_bytes: int) -> Iterator[list[str]]:
    """Yields the first documents, up to the one that fills `max_bytes` of UTF-8."""
    num_bytes = 0
    for document in documents:
        yield document
        num_bytes += sum(len(sentence.encode()) for sentence in document)
        if num_bytes > max_bytes:
            break
