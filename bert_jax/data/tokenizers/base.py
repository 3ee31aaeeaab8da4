"""What every tokenizer has: the special tokens, pieces by id, a file, an encoder.

Shapes: V piece of the vocabulary.
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

# Sentences -> int32 ids of each; no special one but [UNK], whatever the text says.
Encoder = Callable[[list[str]], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Tokenizer(abc.ABC):
    """Text -> token ids: a value that can be compared, pickled and kept in a file."""

    FILE: ClassVar[str]  # in a corpus directory and beside an exported model

    vocab: tuple[str, ...]  # pieces in id order
    lowercase: bool

    @property
    def digest(self) -> str:
        """A sha256 of everything that decides which ids a text gets."""
        kind = f"{type(self).__name__} {self.lowercase}\n"
        return hashlib.sha256(kind.encode() + self.content()).hexdigest()

    @property
    @abc.abstractmethod
    def continues_word(self) -> np.ndarray:
        """bool[V], True where a piece goes on with the word of the piece before it."""

    @property
    @abc.abstractmethod
    def num_characters(self) -> np.ndarray:
        """int32[V], how many characters of a text each piece stands for."""

    @abc.abstractmethod
    def string_spans(self, text: str) -> list[tuple[int, int]]:
        """Returns where the strings of a text are that are tokenised by themselves.

        Each (start, end) in characters; encoding them one by one gives the text's ids.
        """

    def id(self, token: str) -> int:
        return self.vocab.index(token)

    @abc.abstractmethod
    def encoder(self) -> Encoder:
        """Returns the fast way from sentences to ids; a process builds it once."""

    @abc.abstractmethod
    def huggingface(self) -> tokenizers.Tokenizer:
        """Returns the `tokenizers` pipeline of the same ids, without special tokens."""

    @abc.abstractmethod
    def content(self) -> bytes:
        """Returns what the tokenizer's file holds."""

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the file into a directory, whole or not at all."""
        storage.write(os.path.join(directory, self.FILE), self.content())


def text_sample(documents: Iterable[list[str]], max_bytes: int) -> Iterator[list[str]]:
    """Yields the first documents, up to the one that fills `max_bytes` of UTF-8."""
    num_bytes = 0
    for document in documents:
        yield document
        num_bytes += sum(len(sentence.encode()) for sentence in document)
        if num_bytes > max_bytes:
            break
