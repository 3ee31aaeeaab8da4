"""Base class of the tokenizers, and the special tokens.

Shapes: V vocabulary.
"""

import abc
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import numpy as np
import tokenizers

from bert_jax import storage

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)

# Maps sentences to the int32 token ids of each. [UNK] is the only special token that
# text can become.
Encoder = Callable[[list[str]], list[np.ndarray]]


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

    @property
    @abc.abstractmethod
    def num_characters(self) -> np.ndarray:
        """int32[V], the number of characters of text that each piece represents."""

    @abc.abstractmethod
    def string_spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the spans of the strings of a text that are tokenized separately.

        Each span is (start, end) in characters. The ids of the strings, concatenated,
        are the ids of the text.
        """

    def id(self, token: str) -> int:
        return self.vocab.index(token)

    @abc.abstractmethod
    def encoder(self) -> Encoder:
        """Builds the encoder, which is expensive; build one per process."""

    @abc.abstractmethod
    def huggingface(self) -> tokenizers.Tokenizer:
        """Returns an equivalent `tokenizers` pipeline, without special tokens."""

    @abc.abstractmethod
    def content(self) -> bytes:
        """Returns the content of the tokenizer's file."""

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the file atomically into a directory."""
        storage.write(os.path.join(directory, self.FILE), self.content())


def text_sample(documents: Iterable[list[str]], max_bytes: int) -> Iterator[list[str]]:
    """Yields the first documents, up to the one that fills `max_bytes` of UTF-8."""
    num_bytes = 0
    for document in documents:
        yield document
        num_bytes += sum(len(sentence.encode()) for sentence in document)
        if num_bytes > max_bytes:
            break
