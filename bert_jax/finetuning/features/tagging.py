"""Sentences of tagged words -> batches of ids and labels, and back to tags of words.

A word's first piece has its tag; no loss reads the others.

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
    """A row a sentence.

    Attributes:
      rows: of the sentences.
      labels: int32 of each of `text_rows.ids`, IGNORED but at a word's first piece;
        None for a test set.
      words: int32 of each of `text_rows.ids`, the word of its sentence that begins
        there, or -1.
      num_words_N: int64, words of each sentence.
      num_cut: words that their row has no room for.
      class_of_cut: what these count as: O.
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
        """Returns int64[N], the tokens of each row."""
        return self.rows.num_tokens()

    def batch(self, sentences_B: np.ndarray) -> dict[str, np.ndarray]:
        """Returns what the model and its loss read of some sentences.

        Args:
          sentences_B: int64; -1 for what fills the batch up.

        Returns:
          int32[B, T] of what `Bert.encode` reads and labels if there are any,
          float32[B] weights; T as short as these sentences allow, see `Rows.cut`.
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

        T is as long as these sentences need, or longer.
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


def of_sentences(
    sentences: Sentences,
    names: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    key: str,
) -> TaggingFeatures:
    """Returns rows of up to `length` tokens, whose ends are cut.

    Args:
      sentences: from `conll.read`.
      names: of the classes; what has no room is O, or the first where none is that.
      tokenizer: the model's.
      length: T.
      key: the config key that the names are from, for the error message.

    Raises:
      ConfigError: for a tag that is none of the names.
    """
    num_words_N = np.array([len(words) for words in sentences.words], np.int64)
    flat = [word for words in sentences.words for word in words]
    pieces = text_rows.encode_texts(flat, tokenizer)
    num_pieces = np.array([len(ids) for ids in pieces], np.int64)
    last_word_N = np.cumsum(num_words_N)
    num_tokens_N = np.diff(np.cumsum(num_pieces)[last_word_N - 1], prepend=0)
    texts = np.split(np.concatenate(pieces), np.cumsum(num_tokens_N)[:-1])
    tokens = text_rows.join(texts, tokenizer, length)

    begins = np.cumsum(num_pieces) - num_pieces  # a word's first piece, in flat tokens
    first_word_N = last_word_N - num_words_N
    word = np.full(num_pieces.sum(), -1, np.int32)
    word[begins] = np.arange(len(flat)) - np.repeat(first_word_N, num_words_N)
    labels = None
    if (classes := sentences.classes(names, key)) is not None:
        label = np.full(num_pieces.sum(), IGNORED, np.int32)
        label[begins] = np.concatenate(classes)
        labels = text_rows.aligned([label], tokens, IGNORED)

    pairs_N4 = np.zeros((len(num_words_N), 4), np.int64)
    pairs_N4[:, 0] = tokens.starts
    pairs_N4[:, 1] = np.minimum(tokens.lengths, length - 2)
    places = begins - np.repeat(begins[first_word_N], num_words_N)
    return TaggingFeatures(
        Rows(tokens.ids, pairs_N4, length),
        labels,
        text_rows.aligned([word], tokens, -1),
        num_words_N,
        int((places >= length - 2).sum()),
        names.index("O") if "O" in names else 0,
    )
