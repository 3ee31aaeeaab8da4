"""Converts tagged sentences to batches, and token predictions back to word tags.

The first token of each word carries the word's label; the loss ignores the others.

Shapes: N sentence, B sentence of the batch, T token.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.data.batches import text_rows
from bert_jax.data.batches.text_rows import Rows
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.finetuning.data.conll import Sentences
from bert_jax.finetuning.losses import IGNORED


@dataclasses.dataclass(frozen=True)
class TaggingFeatures:
    """Rows of sentences, one per sentence.

    Attributes:
      rows: [CLS] sentence [SEP].
      labels: int32, label of each of the rows' ids, IGNORED except at the first token
        of a word; None for a test set.
      words: int32, for each of the rows' ids the index in its sentence of the word
        that begins there, or -1. A word of which the tokenizer drops every character
        begins nowhere.
      num_words_N: int64, number of words of each sentence.
      num_cut: words that were truncated because their row is full.
      class_of_cut: class predicted for words that begin nowhere and for truncated
        ones: O, or 0 if there is no O.
    """

    rows: Rows
    labels: np.ndarray | None
    words: np.ndarray
    num_words_N: np.ndarray
    num_cut: int
    class_of_cut: int

    def __len__(self) -> int:
        return len(self.rows)

    def num_tokens(self) -> np.ndarray:
        """Returns int64[N], the number of tokens of each row."""
        return self.rows.num_tokens()

    def batch(self, sentences_B: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the inputs of the model and its loss for some sentences.

        Args:
          sentences_B: int64 indices of sentences; -1 for padding rows.

        Returns:
          int32[B, T] inputs of `Bert.encode`, int32[B, T] labels if known, float32[B]
          weights. T is reduced to fit the longest of these sentences, see `Rows.cut`.
        """
        found = {"weights": text_rows.weights(sentences_B)}
        sentences_B = np.maximum(sentences_B, 0)
        rows = self.rows.cut(sentences_B)
        layout = rows.layout(sentences_B)
        if self.labels is not None:
            found["labels"] = self.labels[layout.source_BT]
        return found | rows.arrays(layout)

    def word_classes(
        self, sentences_B: np.ndarray, classes_BT: np.ndarray
    ) -> list[np.ndarray]:
        """Returns the class of every word of some sentences, given those of tokens.

        Args:
          sentences_B: int64 indices of sentences.
          classes_BT: int class of each token; T is at least the length of the longest
            of these rows.
        """
        rows = dataclasses.replace(self.rows, length=classes_BT.shape[1])
        layout = rows.layout(sentences_B)
        words_BT = self.words[layout.source_BT]
        found = []
        for sentence, words_T, classes_T in zip(
            sentences_B, words_BT, classes_BT, strict=True
        ):
            num_words = self.num_words_N[sentence]
            classes = np.full(num_words, self.class_of_cut, np.int32)
            classes[words_T[words_T >= 0]] = classes_T[words_T >= 0]
            found.append(classes)
        return found


def from_sentences(
    sentences: Sentences,
    names: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    key: str,
) -> TaggingFeatures:
    """Converts sentences to rows of up to `length` tokens, truncated at the end.

    Args:
      sentences: from `conll.read`.
      names: class names.
      tokenizer: tokenizer of the model.
      length: T, maximum tokens of a row.
      key: the config key that defines the names, for the error message.

    Raises:
      ConfigError: if a tag is not among the names.
    """
    num_words_N = np.array([len(words) for words in sentences.words], np.int64)
    flat = [word for words in sentences.words for word in words]
    pieces = tokenizer.encoder()(flat)
    num_pieces = np.array([len(ids) for ids in pieces], np.int64)
    last_word_N = np.cumsum(num_words_N)
    num_tokens_N = np.diff(np.cumsum(num_pieces)[last_word_N - 1], prepend=0)
    texts = np.split(np.concatenate(pieces), np.cumsum(num_tokens_N)[:-1])
    tokens = text_rows.join(texts, tokenizer, length)

    begins = np.cumsum(num_pieces) - num_pieces  # index of each word's first token
    has_token = num_pieces > 0
    first_word_N = last_word_N - num_words_N
    number = np.arange(len(flat)) - np.repeat(first_word_N, num_words_N)
    word = np.full(num_pieces.sum(), -1, np.int32)
    word[begins[has_token]] = number[has_token]
    labels = None
    if (classes := sentences.classes(names, key)) is not None:
        label = np.full(num_pieces.sum(), IGNORED, np.int32)
        label[begins[has_token]] = np.concatenate(classes)[has_token]
        labels = text_rows.aligned([label], tokens, IGNORED)

    pairs_N4 = np.zeros((len(num_words_N), 4), np.int64)
    pairs_N4[:, 0] = tokens.starts
    pairs_N4[:, 1] = np.minimum(tokens.lengths, length - 2)
    positions = begins - np.repeat(begins[first_word_N], num_words_N)
    return TaggingFeatures(
        Rows(tokens.ids, pairs_N4, length),
        labels,
        text_rows.aligned([word], tokens, -1),
        num_words_N,
        int((has_token & (positions >= length - 2)).sum()),
        names.index("O") if "O" in names else 0,
    )
