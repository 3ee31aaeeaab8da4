"""Converts texts, text pairs, and contexts with choices to batches.

Shapes: N example, B example of the batch, C choice or text, T token.
"""

import dataclasses

import numpy as np

from bert_jax.data.batches import text_rows
from bert_jax.data.batches.text_rows import Rows
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.finetuning.data.examples import Choices, Texts


@dataclasses.dataclass(frozen=True)
class TextFeatures:
    """Rows of examples: one per example, or one per choice or text of an example.

    Attributes:
      rows: rows of all examples; those of one example are consecutive.
      num_choices: C, rows per example; None if an example is a single row.
      labels: see `Texts` and `Choices`; None for a test set.
      num_truncated: number of rows that were truncated.
    """

    rows: Rows
    num_choices: int | None
    labels: np.ndarray | None
    num_truncated: int

    def __len__(self) -> int:
        return len(self.rows) // (self.num_choices or 1)

    def num_tokens(self) -> np.ndarray:
        """Returns int64[N], the number of tokens of each example's longest row."""
        return self.rows.num_tokens().reshape(len(self), -1).max(axis=1)

    def batch(self, examples_B: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the inputs of the model and its loss for some examples.

        Args:
          examples_B: int64 indices of examples; -1 for padding rows.

        Returns:
          int32[B, T] or [B, C, T] inputs of `Bert.encode`, labels if known, float32[B]
          weights. T is reduced to fit the longest of these examples, see `Rows.cut`.
        """
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
    rows, num_truncated = _rows(texts.a, texts.b, tokenizer, length)
    return TextFeatures(rows, None, texts.labels, num_truncated)


def from_choices(choices: Choices, tokenizer: Tokenizer, length: int) -> TextFeatures:
    """Converts each choice to a row [CLS] context [SEP] choice [SEP]."""
    num_choices = len(choices.choices[0])
    contexts = [text for text in choices.contexts for _ in range(num_choices)]
    flat = [text for texts in choices.choices for text in texts]
    rows, num_truncated = _rows(contexts, flat, tokenizer, length)
    return TextFeatures(rows, num_choices, choices.labels, num_truncated)


def from_separate_texts(
    texts: Texts, tokenizer: Tokenizer, length: int
) -> TextFeatures:
    """Converts each of the two texts of a pair to a row [CLS] text [SEP]."""
    assert texts.b is not None
    flat = [text for pair in zip(texts.a, texts.b, strict=True) for text in pair]
    rows, num_truncated = _rows(flat, None, tokenizer, length)
    return TextFeatures(rows, 2, texts.labels, num_truncated)


def _rows(
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
