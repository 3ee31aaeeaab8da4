"""Converts texts and text pairs to batches.

Shapes: N example, B example of the batch, C choice or text, T token.
"""

import dataclasses

import numpy as np

from bert_jax.data.batches import text_rows
from bert_jax.data.batches.text_rows import Rows
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.finetuning.data.examples import Texts
from bert_jax.finetuning.tasks.base import Features


@dataclasses.dataclass(frozen=True)
class TextFeatures(Features):
    """Rows of examples: one per example, or one per choice or text of an example.

    Attributes:
      rows: rows of all examples; those of one example are consecutive.
      num_choices: C, rows per example; None if an example is a single row.
      labels: see `Texts` and `Choices`; None for a test set.
      num_truncated: number of rows that were truncated.
    """

    num_choices: int | None
    labels: np.ndarray | None
    num_truncated: int

    def __len__(self) -> int:
        return len(self.rows) // (self.num_choices or 1)

    def num_tokens(self) -> np.ndarray:
        return self.rows.num_tokens().reshape(len(self), -1).max(axis=1)

    def batch(self, examples_B):
        found = {"weights": text_rows.weights(examples_B)}
        examples_B = np.maximum(examples_B, 0)
        if self.labels is not None:
            found["labels"] = self.labels[examples_B]
        if self.num_choices is None:
            rows = self.rows.cut(examples_B)
            return found | rows.arrays(rows.layout(examples_B))
        C = self.num_choices
        rows_R = (examples_B[:, None] * C + np.arange(C)).ravel()
        rows = self.rows.cut(rows_R)
        arrays = rows.arrays(rows.layout(rows_R))
        return found | {
            name: array.reshape(len(examples_B), C, -1)
            for name, array in arrays.items()
        }


def from_texts(texts: Texts, tokenizer: Tokenizer, length: int) -> TextFeatures:
    """Converts texts or pairs to rows of up to `length` tokens.

    A pair that is too long loses tokens from its longer text first.
    """
    rows, num_truncated = encode(texts.a, texts.b, tokenizer, length)
    return TextFeatures(rows, None, texts.labels, num_truncated)


def from_separate_texts(
    texts: Texts, tokenizer: Tokenizer, length: int
) -> TextFeatures:
    """Converts each of the two texts of a pair to a row [CLS] text [SEP]."""
    assert texts.b is not None
    flat = [text for pair in zip(texts.a, texts.b, strict=True) for text in pair]
    rows, num_truncated = encode(flat, None, tokenizer, length)
    return TextFeatures(rows, 2, texts.labels, num_truncated)


def encode(
    a: list[str], b: list[str] | None, tokenizer: Tokenizer, length: int
) -> tuple[Rows, int]:
    """Returns the rows and the number of truncated rows."""
    encode = tokenizer.encoder()
    texts = encode(a)
    a_N = np.arange(len(a))
    b_N = np.full(len(a), -1)
    if b is not None:
        b_N = a_N + len(a)
        texts += encode(b)
    tokens = text_rows.join(texts, tokenizer, length)
    return text_rows.of_pairs(tokens, a_N, b_N, length)
