"""The similarity of two texts, as the cosine of their embeddings.

Shapes: N example, B pair of the batch, D hidden.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.validation import Length, Positive, require
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.finetuning import metrics as metrics_lib
from bert_jax.finetuning import tables
from bert_jax.finetuning.tables import Table
from bert_jax.finetuning.tasks import base
from bert_jax.finetuning.tasks.base import Form, Task, Texts
from bert_jax.finetuning.tasks.text import TextFeatures, squared_errors, text_features
from bert_jax.model import heads
from bert_jax.model.heads import HeadType
from bert_jax.training.losses import weighted_cross_entropy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarity(Task):
    kind: Literal["similarity"]  # what to predict
    text: Annotated[tuple[str, ...], Length(min=2, max=2)]  # the two text columns
    label: str  # column of the similarity score
    max_label: Positive  # score whose target cosine is 1; the target of score 0 is 0
    # columns of the training set without scores: two of texts that belong together, or
    # one, whose texts differ by dropout alone; the other texts of the batch are
    # negatives. (): train on the scores
    positives: Annotated[tuple[str, ...], Length(min=0, max=2)]
    temperature: Positive  # divides the cosines to the positive and the negatives

    head = HeadType("similarity", heads.BertForSimilarity, heads.ENCODER)
    metrics = ("spearman", "pearson")
    pipeline = "sentence-similarity"
    form = Form(2, 2, "text ||| text", "A fine text. ||| Another one.")

    @property
    def needs_dropout(self):
        return len(self.positives) == 1

    def check(self, length, config=None):
        if config is None or not self.positives:
            return
        require(
            config.accumulation_steps == 1,
            "config.accumulation_steps",
            config.accumulation_steps,
            "must be 1 with config.task.positives, whose negatives are the other texts"
            " of the whole batch",
        )
        dropout = config.dropout
        require(
            not self.needs_dropout or dropout.hidden_prob + dropout.attention_prob > 0,
            "config.dropout.hidden_prob",
            dropout.hidden_prob,
            "must be above 0 with one column in config.task.positives: without dropout,"
            " the two embeddings of a text are equal",
        )

    def parse(self, table, names, role):
        if role == "train" and self.positives:
            key = "config.task.positives"
            a, *b = (tables.texts(table, column, key) for column in self.positives)
            labels = np.ones(len(a), np.float32)
            # One column is paired with itself.
            texts = a, b[0] if b else a
            return Texts(*texts, labels, np.arange(len(a)))
        label = "" if role == "test" else self.label
        return read_pairs(table, self.text, label, self.max_label)

    def featurize(self, examples, names, tokenizer, length, role):
        return separate_rows(examples, tokenizer, length)

    def loss(self, outputs, batch):
        """Returns the sum of squared errors of cosines, or the contrastive loss."""
        if self.positives:
            unit_B2D = heads.embeddings(outputs.states[-1], batch["sequence_ids"])
            return contrastive(unit_B2D, batch, self.temperature)
        return squared_errors(outputs.logits, batch)

    def distances(self, logits, teacher, batch, temperature):
        return jnp.square(logits - teacher), batch["weights"]

    def predict(self, examples, features, logits, names) -> np.ndarray:
        """Returns float32[N] cosines."""
        return logits

    def evaluate(self, examples, predicted, names):
        return metrics_lib.regression(predicted, examples.labels)

    def results(self, examples, predicted, logits, names):
        return [{"similarity": float(cosine)} for cosine in predicted]


def separate_rows(texts: Texts, tokenizer: Tokenizer, length: int) -> TextFeatures:
    """Converts each of the two texts of a pair to a row [CLS] text [SEP]."""
    assert texts.b is not None
    flat = [text for pair in zip(texts.a, texts.b, strict=True) for text in pair]
    return text_features(flat, None, texts.labels, tokenizer, length, 2)


def read_pairs(
    table: Table,
    text: Sequence[str],
    label: str,
    max_label: float,
    given_as: str = "config.task.max_label",
) -> Texts:
    """Converts a table to text pairs labelled with their target cosines.

    Args:
      label: column of the similarity score; "" for a set without labels.
      max_label: score whose target cosine is 1; the key or file `given_as` has it.
    """
    a, b = (tables.texts(table, name, "config.task.text") for name in text)
    found = Texts(a, b, None, np.arange(len(a)))
    if not label:
        return found

    def score(value: object) -> float:
        number = float(np.float32(tables.score(value, tables.LABEL)))
        if not 0 <= number <= max_label:
            raise ValueError(
                f"has {label}={number:g}; it must be between 0 and"
                f" {given_as}={max_label:g}"
            )
        return number

    scores_N = np.array(table.convert(label, tables.LABEL, score), np.float32)
    return dataclasses.replace(found, labels=scores_N / np.float32(max_label))


def contrastive(
    unit_B2D: jax.Array, batch: base.Batch, temperature: float
) -> base.SumAndCount:
    """Returns the summed cross entropy in nats and the number of pairs.

    The classes of a first text are the second texts of the batch, and the right one is
    its own. The logits are cosines over the temperature.

    Source: Henderson et al. 2017, "Efficient Natural Language Response Suggestion",
    section 4.4; Gao et al. 2021, "SimCSE", equation 1.

    Args:
      unit_B2D: float32 embeddings of length 1.
      batch: float32[B] weights. Texts of weight 0 do not count as classes.
    """
    second_BD = jax.reshard(unit_B2D[:, 1], jax.P())  # of all devices
    cosines_BB = jnp.einsum(
        "bd,cd->bc", unit_B2D[:, 0], second_BD, precision=jax.lax.Precision.HIGHEST
    )
    is_class_B = jax.reshard(batch["weights"], jax.P()) > 0
    logits_BB = jnp.where(is_class_B, cosines_BB / temperature, -1e9)
    weights_B = batch["weights"]
    labels_B = jnp.arange(len(unit_B2D), out_sharding=jax.typeof(weights_B).sharding)
    total, _ = weighted_cross_entropy(logits_BB, labels_B, weights_B)
    return total, jnp.sum(weights_B)
