"""The interface of a kind of task, from its data to its predictions.

A new kind is a subclass of `Task` in a module of its own, and a member of the union in
__init__.py. The fields of the class are the keys of config.task.

Shapes: N example, B example of the batch, C class or choice, T token.
"""

import abc
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batches import text_rows
from bert_jax.data.batches.text_rows import Rows
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.finetuning.data import examples as examples_lib
from bert_jax.finetuning.data.examples import Examples, Texts
from bert_jax.finetuning.data.tables import Table
from bert_jax.model.heads import HeadType, Outputs
from bert_jax.training.losses import weighted_cross_entropy

if TYPE_CHECKING:
    from bert_jax.finetuning.config import FinetuneConfig

Batch = dict[str, jax.Array]
SumAndCount = tuple[jax.Array, jax.Array]  # both float32[]; the count divides the sum
# A training set, a dev set with labels, or a test set without.
Role = Literal["train", "dev", "test"]


@dataclasses.dataclass(frozen=True)
class Features:
    """Rows of token ids for a model."""

    rows: Rows

    def __len__(self) -> int:
        """Returns the number of items that a batch selects: examples or windows."""
        return len(self.rows)

    def num_tokens(self) -> np.ndarray:
        """Returns the number of tokens of each item's longest row, as int64."""
        return self.rows.num_tokens()

    def batch(self, items_B: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the inputs of the model and the loss for some items.

        Args:
          items_B: int64 indices of items; -1 for padding rows.

        Returns:
          int32[B, T] or [B, C, T] inputs of `Bert.states`, float32[B] weights, and
          labels if known. T is reduced to fit the longest of these rows.
        """
        found = {"weights": text_rows.weights(items_B)}
        return found | self.inputs(np.maximum(items_B, 0))

    def inputs(self, items_B: np.ndarray) -> dict[str, np.ndarray]:
        """Returns `batch` without weights and padding rows."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class TextFeatures(Features):
    """Rows of examples; those of one example, its choices or texts, are consecutive."""

    num_choices: int | None  # C, rows per example; None if an example is a single row
    labels: np.ndarray | None  # see `Texts` and `Choices`; None for a test set
    num_truncated: int  # number of rows that were truncated

    def __len__(self) -> int:
        return len(self.rows) // (self.num_choices or 1)

    def num_tokens(self) -> np.ndarray:
        return self.rows.num_tokens().reshape(len(self), -1).max(axis=1)

    def inputs(self, examples_B):
        found = {}
        if self.labels is not None:
            found["labels"] = self.labels[examples_B]
        C = self.num_choices
        if C is not None:
            examples_B = (examples_B[:, None] * C + np.arange(C)).ravel()
        rows = self.rows.cut(examples_B)
        for name, array in rows.arrays(rows.layout(examples_B)).items():
            T = array.shape[1]
            found[name] = array if C is None else array.reshape(-1, C, T)
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
    tokens = text_rows.join(texts, tokenizer, length)
    rows, num_truncated = text_rows.of_pairs(tokens, a_N, b_N, length)
    return TextFeatures(rows, num_choices, labels, num_truncated)


class Form(NamedTuple):
    """The texts of an input of `predict`: their number, a description, an example."""

    least: int
    most: int
    words: str
    example: str


class Task(abc.ABC):
    """A kind of task; its instances are sections config.task of a config.

    The methods of subclasses have the types of these. A row of weight 0 pads the batch;
    it contributes neither to the loss nor to the count.
    """

    kind: str
    form: Form  # the form of an input of `predict`
    has_pairs: bool = False  # whether a row has two texts
    cuts_pairs: bool = False  # whether a long pair loses tokens of its longer text
    head: ClassVar[HeadType]
    metrics: ClassVar[tuple[str, ...]]  # choices of config.metric
    pipeline: ClassVar[str]  # the pipeline tag of the Hugging Face Hub
    # Settings that are stored with a model -> their values for a model without them;
    # see tuned_model.py.
    settings: ClassVar[dict[str, Any]] = {}

    def check(  # noqa: B027
        self, length: int, config: "FinetuneConfig | None" = None
    ) -> None:
        """Checks keys against each other; the task of a trained model has no config."""

    def label_names(self, spec: str, header: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the names of the head's labels; () if its outputs have none."""
        return ()

    def read(
        self, spec: str, header: tuple[str, ...], names: Sequence[str], role: Role
    ) -> Examples:
        """Reads a data set; by default, a table."""
        table = examples_lib.read_table(spec, header, is_test=role == "test")
        return self.parse(table, names, role)

    def parse(self, table: Table, names: Sequence[str], role: Role) -> Examples:
        """Converts a table to examples."""
        raise NotImplementedError

    def of_inputs(
        self, inputs: list[tuple[str, ...]], settings: dict[str, Any]
    ) -> Examples:
        """Converts inputs of `predict` to unlabelled examples; by default, `Texts`.

        Args:
          inputs: at least one; all have the same number of texts, which `form` allows.
          settings: the model's values of the class's `settings`.
        """
        a, *b = ([*texts] for texts in zip(*inputs, strict=True))
        return Texts(a, b[0] if b else None, None, np.arange(len(a)))

    @abc.abstractmethod
    def featurize(
        self,
        examples: Any,
        names: Sequence[str],
        tokenizer: Tokenizer,
        length: int,
        role: Role,
    ) -> Features:
        """Converts examples to rows of up to `length` token ids."""

    def loss(self, outputs: Outputs, batch: Batch) -> SumAndCount:
        """Returns the summed loss and the number of its terms.

        By default they are the cross entropy in nats and the number of examples.
        """
        weights_B = batch["weights"]
        total, _ = weighted_cross_entropy(outputs.logits, batch["labels"], weights_B)
        return total, jnp.sum(weights_B)

    def distances(
        self, logits: jax.Array, teacher: jax.Array, batch: Batch, temperature: float
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the distance from a teacher's logits for each term of the loss.

        By default it is the Kullback-Leibler divergence in nats at the temperature,
        times the temperature squared, which keeps the size of gradients.

        Returns:
          The distances, float32[B] or [B, ...], and the terms' weights, which can be
          broadcast to the same shape.
        """
        return divergences(logits, teacher, temperature), batch["weights"]

    @abc.abstractmethod
    def predict(
        self, examples: Any, features: Any, logits: np.ndarray, names: Sequence[str]
    ) -> Any:
        """Converts the logits of all rows to predictions, in the form of the labels."""

    @abc.abstractmethod
    def evaluate(
        self, examples: Any, predicted: Any, names: Sequence[str]
    ) -> dict[str, float]:
        """Returns the metrics of the predictions for labelled examples."""

    @abc.abstractmethod
    def results(
        self, examples: Any, predicted: Any, logits: np.ndarray, names: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Returns what `TunedModel.predict` returns, one result for each example."""

    def write_submission(  # noqa: B027
        self,
        directory: Path,
        number: int,
        examples: Any,
        predicted: Any,
        names: Sequence[str],
    ) -> None:
        """Writes a leaderboard's file for config.data.test[number], if it has one."""


def divergences(logits: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """Returns Kullback-Leibler divergences over the last axis; see `distances`."""
    logits, teacher = logits / temperature, teacher / temperature
    probs = jax.nn.softmax(teacher, axis=-1)
    ratios = jax.nn.log_softmax(teacher, axis=-1) - jax.nn.log_softmax(logits, axis=-1)
    return jnp.sum(probs * ratios, axis=-1) * temperature**2


def choices_with_probabilities(
    key: str, chosen: Sequence[Any], probs_NC: np.ndarray, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Returns results with what was chosen and the probability of each name."""
    return [
        {key: choice, "probabilities": dict(zip(names, row, strict=True))}
        for choice, row in zip(chosen, probs_NC.tolist(), strict=True)
    ]
