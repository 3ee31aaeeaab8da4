"""A class, a score or several labels of a text or a pair of texts.

Shapes: N example, B example of the batch, C class.
"""

import abc
import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.validation import Fraction, Length, require
from bert_jax.data.batches import row_layout
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.errors import ConfigError
from bert_jax.finetuning import metrics as metrics_lib
from bert_jax.finetuning import tables
from bert_jax.finetuning.tables import Table
from bert_jax.finetuning.tasks import base
from bert_jax.finetuning.tasks.base import Form, Task, Texts
from bert_jax.model import heads
from bert_jax.model.heads import HeadType

# More names of classes that are decimals are scores.
MAX_DECIMALS, _DECIMAL = 10, re.compile(r"-?\d*\.\d+")
TextColumns = Annotated[tuple[str, ...], Length(min=1, max=2)]
# Indexed by the number of texts that a model was fine-tuned on; 0 means unknown.
FORMS = (
    Form(1, 2, "a text, or two separated by |||", "A fine text."),
    Form(1, 1, "a text", "A fine text."),
    Form(2, 2, "text ||| text", "A fine text. ||| Another one."),
)

# Task of GLUE -> the file name that gluebenchmark.com requires, and whether its
# predictions are class numbers rather than names.
GLUE_FILES = {
    "cola": ("CoLA.tsv", True),
    "sst2": ("SST-2.tsv", True),
    "mrpc": ("MRPC.tsv", True),
    "stsb": ("STS-B.tsv", False),
    "qqp": ("QQP.tsv", True),
    "mnli_matched": ("MNLI-m.tsv", False),
    "mnli_mismatched": ("MNLI-mm.tsv", False),
    "qnli": ("QNLI.tsv", False),
    "rte": ("RTE.tsv", False),
    "wnli": ("WNLI.tsv", True),
    "ax": ("AX.tsv", False),
}
SCORE_RANGE = (0.0, 5.0)  # of STS-B, the only regression task of GLUE


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Base class of the tasks that classify or score texts."""

    kind: str  # what to predict
    text: TextColumns  # one text column, or two for text pairs
    label: str  # label column
    labels: tuple[str, ...]  # class names; (): take them from the training set
    glue: tuple[str, ...]  # keys of GLUE_FILES, one for each of data.test
    index: str  # column of a test example's index in GLUE's file; "": row number
    threshold: Fraction  # multi_label: minimum probability of a predicted class

    pipeline = "text-classification"
    settings = {"num_texts": 0}  # 1 for single texts, 2 for pairs, 0 if unknown

    @property
    def form(self) -> Form:
        return FORMS[self.num_texts]

    @property
    def num_texts(self):
        return len(self.text)

    @property
    def has_pairs(self):
        return self.num_texts == 2

    def check(self, length, config=None):
        key = "config.task.labels" if config else "config.json: id2label"
        check_labels(self.labels, key)
        if config is None:
            return
        require(
            self.label not in self.text,
            "config.task.label",
            self.label,
            "must be another column than those of config.task.text",
        )
        require(
            len(self.glue) in (0, len(config.data.test))
            and set(self.glue) <= GLUE_FILES.keys(),
            "config.task.glue",
            self.glue,
            f"must be empty, or have one of {', '.join(GLUE_FILES)} for each of"
            " config.data.test",
        )

    @abc.abstractmethod
    def parse_labels(self, table: Table, names: Sequence[str]) -> np.ndarray: ...

    def parse(self, table, names, role) -> Texts:
        a, *b = (
            tables.texts(table, column, "config.task.text") for column in self.text
        )
        labels, indices = None, np.arange(len(a))
        if role != "test":
            labels = self.parse_labels(table, names)
        elif self.glue and self.index:
            key = "config.task.index"
            indices = tables.scores(table, self.index, key).astype(np.int64)
        return Texts(a, b[0] if b else None, labels, indices)

    def featurize(self, examples, names, tokenizer, length, role):
        return text_features(examples.a, examples.b, examples.labels, tokenizer, length)

    def write_submission(self, directory, number, examples, predicted, names):
        """Writes a submission file of GLUE, by each example's index in its file."""
        if not self.glue:
            return
        name, by_number = GLUE_FILES[self.glue[number]]
        if np.issubdtype(predicted.dtype, np.floating):
            values = [f"{score:.3f}" for score in np.clip(predicted, *SCORE_RANGE)]
        else:
            values = [str(n) if by_number else names[n] for n in predicted]
        index_N = examples.index
        lines = [f"{index_N[i]}\t{values[i]}\n" for i in np.argsort(index_N)]
        base.write_lines(directory / name, ["index\tprediction\n", *lines])


@dataclasses.dataclass(frozen=True)
class TextFeatures(base.Features):
    """Rows of examples; those of one example, its choices or texts, are consecutive."""

    num_choices: int | None  # C, rows per example; None if an example is a single row
    labels: np.ndarray | None  # see `Texts` and `Choices`; None for a test set
    num_truncated: int  # number of rows that were truncated

    def __len__(self) -> int:
        return len(self.rows) // (self.num_choices or 1)

    def num_tokens(self) -> np.ndarray:
        return self.rows.num_tokens().reshape(len(self), -1).max(axis=1)

    def inputs(self, examples_B):
        C, rows_B = self.num_choices, examples_B
        if C is not None:
            rows_B = (examples_B[:, None] * C + np.arange(C)).ravel()
        found = super().inputs(rows_B)
        if C is not None:
            found = {name: x.reshape(-1, C, x.shape[1]) for name, x in found.items()}
        if self.labels is not None:
            found["labels"] = self.labels[examples_B]
        return found


def text_features(
    a: list[str],
    b: list[str] | None,
    labels: np.ndarray | None,
    tokenizer: Tokenizer,
    length: int,
    num_choices: int | None = None,
) -> TextFeatures:
    """Converts texts or pairs to rows of up to `length` tokens; see `TextFeatures`.

    A pair that is too long loses tokens from its longer text first.
    """
    encode = tokenizer.encoder()
    texts = encode(a)
    a_N, b_N = np.arange(len(a)), np.full(len(a), -1)
    if b is not None:
        b_N = a_N + len(a)
        texts += encode(b)
    tokens = row_layout.join(texts, tokenizer, length)
    rows, num_truncated = row_layout.of_pairs(tokens, a_N, b_N, length)
    return TextFeatures(rows, num_choices, labels, num_truncated)


def _head(kind: str, problem_type: str) -> HeadType:
    name = "BertForSequenceClassification"
    return HeadType(kind, heads.BertForClassification, name, problem_type, True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(TextTask):
    kind: Literal["classification"]

    head = _head("classification", "single_label_classification")
    metrics = ("accuracy", "matthews", "f1", "macro_f1")

    def label_names(self, table):
        spec, column = table.spec, self.label
        labels = table.convert(column, tables.LABEL, tables.name_of)
        names = tables.names_in(labels)
        unlabelled = [name for name in names if tables.is_unlabelled(name, ())]
        if unlabelled and names != ("-1", "1"):
            value = unlabelled[0]
            others = tuple(x for x in names if x not in unlabelled)
            add = f"; if {value!r} is a class, name it as well" if value else ""
            raise ConfigError(
                f"{spec}, example {labels.index(value) + 1}, has {column}={value!r}, as"
                f" {labels.count(value):,} of {len(labels):,} examples; to skip"
                " examples without a label, name the classes:"
                f' --config.task.labels="{others}"{add}'
            )
        if len(names) == 1:
            raise ConfigError(
                f"{spec} has {column}={names[0]!r} in all examples;"
                " classification needs examples of at least two classes"
            )
        if len(names) > MAX_DECIMALS and all(map(_DECIMAL.fullmatch, names)):
            raise ConfigError(
                f"{spec} has {len(names)} different numbers in {column}, such as"
                f" {names[0]}; for scores set config.task.kind='regression', or list"
                " the classes in config.task.labels"
            )
        return names

    def parse_labels(self, table, names):
        return tables.classes(table, self.label, names, self.labels_key)

    def parse(self, table, names, role):
        examples = super().parse(table, names, role)
        return examples if role == "test" else base.labelled(examples)

    def predict(self, examples, features, logits, names) -> np.ndarray:
        """Returns int64[N] classes."""
        return logits.argmax(axis=-1)

    def evaluate(self, examples, predicted, names):
        return metrics_lib.classification(predicted, examples.labels, len(names))

    def results(self, examples, predicted, logits, names):
        import scipy.special  # slow to import

        probs_NC = scipy.special.softmax(logits, axis=-1)
        chosen = [names[i] for i in predicted]
        return base.choices_with_probabilities("label", chosen, probs_NC, names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(TextTask):
    kind: Literal["regression"]

    head = _head("regression", "regression")
    metrics = ("pearson", "spearman")

    def check(self, length, config=None):
        super().check(length, config)
        require(
            len(self.labels) <= 1,
            "config.task.labels",
            self.labels,
            "must have at most one name for a regression, whose head has one output",
        )

    def label_names(self, table):
        return (self.label,)

    def parse_labels(self, table, names):
        return tables.scores(table, self.label, tables.LABEL)

    def loss(self, outputs, batch):
        return squared_errors(outputs.logits[:, 0], batch)

    def distances(self, logits, teacher, batch, temperature):
        return jnp.square(logits - teacher)[:, 0], batch["weights"]

    def predict(self, examples, features, logits, names) -> np.ndarray:
        """Returns float32[N] scores."""
        return logits[:, 0]

    def evaluate(self, examples, predicted, names):
        return metrics_lib.regression(predicted, examples.labels)

    def results(self, examples, predicted, logits, names):
        return [{"score": float(score)} for score in predicted]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabel(TextTask):
    """Any number of classes; each class of each example is a decision."""

    kind: Literal["multi_label"]

    head = _head("multi_label", "multi_label_classification")
    metrics = ("micro_f1", "macro_f1")
    settings = TextTask.settings | {"threshold": 0.5}

    def label_names(self, table):
        found = table.convert(self.label, tables.LABEL, tables.parts)
        names = tables.names_in(itertools.chain(*found))
        if not names:
            raise ConfigError(
                f"{table.spec} has no label in its column {self.label!r};"
                " multi_label needs at least one"
            )
        return names

    def parse_labels(self, table, names):
        return tables.class_sets(table, self.label, names, self.labels_key)

    def loss(self, outputs, batch):
        """Returns the summed binary cross entropy in nats and the number of decisions.

        The labels are float32[B, C], each 0 or 1.
        """
        logits_BC = outputs.logits
        # Equals -y log sigmoid(x) - (1 - y) log sigmoid(-x), but avoids cancellation.
        losses_BC = jax.nn.softplus(logits_BC) - logits_BC * batch["labels"]
        weights_B1 = batch["weights"][:, None]
        num_classes = logits_BC.shape[1]
        return jnp.sum(losses_BC * weights_B1), num_classes * jnp.sum(weights_B1)

    def distances(self, logits, teacher, batch, temperature):
        found_BC = base.divergences(_binary(logits), _binary(teacher), temperature)
        return found_BC, batch["weights"][:, None]

    def predict(self, examples, features, logits, names) -> np.ndarray:
        """Returns int64[N, C], 1 for each predicted class."""
        import scipy.special  # slow to import

        return (scipy.special.expit(logits) > self.threshold).astype(np.int64)

    def evaluate(self, examples, predicted, names):
        return metrics_lib.multi_label(predicted, examples.labels)

    def results(self, examples, predicted, logits, names):
        import scipy.special  # slow to import

        chosen = [base.label_of(row, names) for row in predicted.tolist()]
        probs_NC = scipy.special.expit(logits)
        return base.choices_with_probabilities("labels", chosen, probs_NC, names)


def check_labels(names: Sequence[str], key: str) -> None:
    is_distinct = len(set(names)) == len(names)
    require(is_distinct, key, names, "has a duplicate name; rename one of the two")


def squared_errors(scores_B: jax.Array, batch: base.Batch) -> base.SumAndCount:
    """Returns the sum of squared errors and the number of examples."""
    weights_B = batch["weights"]
    errors_B = jnp.square(scores_B - batch["labels"])
    return jnp.sum(errors_B * weights_B), jnp.sum(weights_B)


def _binary(logits_BC: jax.Array) -> jax.Array:
    """Returns [B, C, 2], the logits of each class's presence and absence."""
    return jnp.stack([logits_BC, jnp.zeros_like(logits_BC)], axis=-1)
