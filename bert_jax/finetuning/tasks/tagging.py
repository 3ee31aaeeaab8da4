"""A tag of each word of a sentence.

The first token of each word carries the word's label; the loss ignores the others.

Shapes: N sentence, B sentence of the batch, T token, C class.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batches import text_rows
from bert_jax.data.batches.text_rows import Rows
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.finetuning import metrics as metrics_lib
from bert_jax.finetuning.data import conll
from bert_jax.finetuning.data.conll import Sentences
from bert_jax.finetuning.tasks import base
from bert_jax.finetuning.tasks.base import Form, Task
from bert_jax.finetuning.tasks.text import check_labels
from bert_jax.model import heads
from bert_jax.model.heads import HeadType
from bert_jax.training.losses import weighted_cross_entropy

IGNORED = -100  # the label of tokens that the loss ignores, as in PyTorch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """A tag of each word."""

    kind: Literal["tagging"]  # what to predict
    # list-valued column of a table; in a conll: file "2" is its second column, and any
    # other text its first
    words: str
    # list-valued column of a table; in a conll: file "3" is its third column, and any
    # other text its last
    tags: str
    labels: tuple[str, ...]  # BIO tags and O; (): take them from the training set

    head = HeadType(
        "tagging", heads.BertForTagging, "BertForTokenClassification", has_labels=True
    )
    metrics = ("f1", "precision", "recall")
    pipeline = "token-classification"
    form = Form(1, 1, "words separated by spaces", "Ann lives in Paris .")

    def check(self, length, config=None):
        if config:
            check_labels(self.labels)

    def label_names(self, spec, header):
        if self.labels:
            return self.labels
        found = conll.read(spec, self.words, self.tags, has_tags=True)
        return conll.tag_names(found.tags or [])

    def read(self, spec, header, names, role):
        return conll.read(spec, self.words, self.tags, has_tags=role != "test")

    def of_inputs(self, inputs, settings):
        return Sentences("inputs", [text.split() or [""] for (text,) in inputs], None)

    def featurize(self, examples, names, tokenizer, length, role):
        if role == "test":  # its tags may have types that are not in the training set
            examples = dataclasses.replace(examples, tags=None)
        key = "config.task.labels" if self.labels else "config.data.train"
        return from_sentences(examples, names, tokenizer, length, key)

    def loss(self, outputs, batch):
        """Returns the summed cross entropy in nats and the number of labelled tokens.

        The labels are int32[B, T], IGNORED for unlabelled tokens.
        """
        weights_BT = _weights(batch)
        labels_BT = jnp.maximum(batch["labels"], 0)
        total, _ = weighted_cross_entropy(outputs.logits, labels_BT, weights_BT)
        return total, jnp.sum(weights_BT)

    def distances(self, logits, teacher, batch, temperature):
        return base.divergences(logits, teacher, temperature), _weights(batch)

    def predict(self, examples, features, logits, names) -> list[list[str]]:
        """Returns the tags of every sentence's words, as BIO if all names are tags."""
        classes_NT = logits.argmax(axis=-1)
        of_words = features.word_classes(np.arange(len(features)), classes_NT)
        tags = [[str(names[i]) for i in classes] for classes in of_words]
        # Classes that are not entity tags, such as parts of speech, stay as they are.
        return [conll.to_bio(s) for s in tags] if conll.are_tags(names) else tags

    def evaluate(self, examples, predicted, names):
        return metrics_lib.tagging(predicted, examples.tags)

    def results(self, examples, predicted, logits, names):
        return [
            {"words": words, "tags": tags}
            if words != [""]
            else {"words": [], "tags": []}
            for words, tags in zip(examples.words, predicted, strict=True)
        ]


def _weights(batch: base.Batch) -> jax.Array:
    """Returns float32[B, T], the row's weight for labelled tokens and 0 for others."""
    has_label_BT = (batch["labels"] != IGNORED).astype(jnp.float32)
    return has_label_BT * batch["weights"][:, None]


@dataclasses.dataclass(frozen=True)
class TaggingFeatures(base.Features):
    """Rows [CLS] sentence [SEP], one per sentence."""

    # int32, label of each of the rows' ids, IGNORED except at the first token of a
    # word; None for a test set
    labels: np.ndarray | None
    # int32, for each of the rows' ids the index in its sentence of the word that begins
    # there, or -1. A word of which the tokenizer drops every character begins nowhere.
    words: np.ndarray
    num_words_N: np.ndarray  # int64
    num_cut: int  # words that were truncated because their row is full
    # class predicted for words that begin nowhere and for truncated ones: O, or 0 if
    # there is no O
    class_of_cut: int

    def inputs(self, sentences_B):
        rows = self.rows.cut(sentences_B)
        layout = rows.layout(sentences_B)
        found = rows.arrays(layout)
        if self.labels is not None:
            found["labels"] = self.labels[layout.source_BT]
        return found

    def word_classes(
        self, sentences_B: np.ndarray, classes_BT: np.ndarray
    ) -> list[np.ndarray]:
        """Returns the class of each word, given those of the tokens of its row."""
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
    """Converts sentences to rows of up to `length` tokens; `key` defines the names."""
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
