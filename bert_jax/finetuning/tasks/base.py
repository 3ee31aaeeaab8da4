"""The interface of a kind of task, from its data to its predictions.

A new kind is a subclass of `Task` in a module of its own, and a member of the union in
__init__.py. The fields of the class are the keys of config.task.

Shapes: N example, B example of the batch, C class or choice, T token.
"""

import abc
import dataclasses
import itertools
import json
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.config.validation import Range
from bert_jax.data.batches.row_layout import Rows
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.errors import ConfigError
from bert_jax.finetuning import tables
from bert_jax.finetuning.tables import Table
from bert_jax.interop import files
from bert_jax.model.heads import HeadType, Outputs
from bert_jax.small_files import read_json, write_json
from bert_jax.training.losses import weighted_cross_entropy

if typing.TYPE_CHECKING:
    from bert_jax.finetuning.config import FinetuneConfig

E = typing.TypeVar("E", bound="Examples")
Batch = dict[str, jax.Array]
SETTINGS_FILE = "decisions.json"
# The types of settings that are no keys of config.task.
SETTING_TYPES = {
    "num_texts": Annotated[int, Range(min=0, max=2)],
    "has_impossible": bool,
}
SumAndCount = tuple[jax.Array, jax.Array]  # both float32[]; the count divides the sum
# A training set, a dev set with labels, or a test set without.
Role = Literal["train", "dev", "test"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples(abc.ABC):
    """The examples of a data set.

    Counts of lost or mended data are attributes with the names in `sweep.LOSSES`.
    """

    num_lost_lines: int = 0  # lines of a table that were dropped
    num_unlabelled: int = 0  # examples that were dropped because they have no label

    @property
    def is_labelled(self) -> bool:
        """Whether the examples have labels, which train and dev sets require."""
        return vars(self)["labels"] is not None

    @abc.abstractmethod
    def write(self, directory: Path, predicted: Any, names: Sequence[str]) -> None:
        """Writes predictions into an existing directory."""

    def references(self) -> bytes:
        """Returns the labels that are not in the rows of a dev set, for its digest."""
        return b""

    def as_test_set(self, train: Any) -> Self:
        """Returns the examples of a test set with what only the training set shows."""
        return self

    def class_counts(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """Returns the number of examples of each class, or of entities of each type."""
        return []

    def class_pairs(
        self, predicted: Any, names: Sequence[str]
    ) -> tuple[list[str], list[str]] | None:
        """Returns labels and predictions by name; None without single classes."""
        return None

    def size(self, num_rows: int) -> str:
        """Returns the number of examples and rows, to print."""
        return f"{num_rows:,} rows"

    def why_empty(self) -> str:
        """Returns why the data set has no rows, and what to do."""
        if self.num_unlabelled:
            return f"none of its {self.num_unlabelled} examples has a label: label them"
        return "give a non-empty data set"


@dataclasses.dataclass(frozen=True)
class Texts(Examples):
    """Texts or text pairs for classification, regression, multi-label or similarity."""

    a: list[str]  # single texts, or the first texts of pairs
    b: list[str] | None  # the second texts of pairs; None for single texts
    # int32[N] classes, float32[N] scores or float32[N, C] sets of classes; None for a
    # test set
    labels: np.ndarray | None
    index: np.ndarray  # int64[N], each example's index in the leaderboard's file

    def write(self, directory, predicted, names):
        rows = []
        for i, value in enumerate(predicted.tolist()):
            pair = {} if self.b is None else {"pair": self.b[i]}
            rows.append({"text": self.a[i], **pair, "label": label_of(value, names)})
        write_json_lines(directory / "predictions.jsonl", rows)

    def class_counts(self, names: Sequence[str]) -> list[tuple[str, int]]:
        labels = self.labels
        if labels is None or not names:
            return []
        if labels.ndim == 2:
            counts = labels.sum(axis=0).astype(int)
        elif np.issubdtype(labels.dtype, np.integer):
            counts = np.bincount(labels, minlength=len(names))
        else:  # scores
            return []
        return list(zip(names, counts.tolist(), strict=True))

    def class_pairs(self, predicted, names):
        labels = self.labels
        if labels is None or np.issubdtype(labels.dtype, np.floating):
            return None
        return [str(names[i]) for i in labels], [str(names[i]) for i in predicted]


def label_of(value: Any, names: Sequence[str]) -> Any:
    """Returns the name of a class, the list of names of a set, or a score itself."""
    if isinstance(value, list):
        return [name for name, is_there in zip(names, value, strict=True) if is_there]
    return value if isinstance(value, float) else names[value]


def read_table(spec: str, header: tuple[str, ...], role: Role) -> Table:
    """Reads a table, from which no lines may be dropped if it is a test set."""
    table = tables.read(spec, header)
    if table.dropped and role == "test":
        raise ConfigError(
            f"{spec}: line {table.dropped[0]} has a different number of columns than"
            f" the first line (as do {len(table.dropped)} lines in all); a test set"
            " needs a prediction for every line, so correct them"
        )
    return table


def labelled(examples: E) -> E:
    """Drops the examples whose label is -1."""
    is_labelled_N = vars(examples)["labels"] >= 0
    kept: dict[str, Any] = {}
    for name, values in vars(examples).items():
        if isinstance(values, list):
            kept[name] = list(itertools.compress(values, is_labelled_N))
        elif isinstance(values, np.ndarray):
            kept[name] = values[is_labelled_N]
    num_unlabelled = int((~is_labelled_N).sum())
    return dataclasses.replace(examples, num_unlabelled=num_unlabelled, **kept)


def write_json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    write_lines(path, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with storage.open_own(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


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
        """Returns the inputs of the model and the loss for items; -1 is a padding row.

        They are int32[B, T] or [B, C, T] inputs of `Bert.states`, float32[B] weights,
        and labels if known. T is reduced to fit the longest of these rows.
        """
        inputs = self.inputs(np.maximum(items_B, 0))
        return {"weights": (items_B >= 0).astype(np.float32)} | inputs

    def inputs(self, items_B: np.ndarray) -> dict[str, np.ndarray]:
        """Returns `batch` without weights and padding rows; by default, no labels."""
        rows = self.rows.cut(items_B)
        return rows.arrays(rows.layout(items_B))


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
    has_windows: bool = False  # whether a long pair is split; others lose tokens
    needs_dropout: bool = False  # whether examples differ by dropout alone
    head: ClassVar[HeadType]
    metrics: ClassVar[tuple[str, ...]]  # choices of config.metric
    pipeline: ClassVar[str]  # the pipeline tag of the Hugging Face Hub
    # Settings that determine how logits are converted to predictions -> their values
    # for a model without them. Hugging Face's config.json has no keys for them, so they
    # are in SETTINGS_FILE, from which `predict` reads them.
    settings: ClassVar[dict[str, Any]] = {}

    def write_settings(self, directory: Path, train: Examples) -> None:
        """Writes the settings, attributes of the task or of its data, if it has any."""
        if self.settings:
            values = {
                key: getattr(self if hasattr(self, key) else train, key)
                for key in self.settings
            }
            write_json(directory / SETTINGS_FILE, values)

    @classmethod
    def read_settings(cls, directory: Path, **given: Any) -> dict[str, Any]:
        """Reads a model's settings; `given` ones that are not None replace them."""
        types = typing.get_type_hints(cls, include_extras=True) | SETTING_TYPES
        path, stored = directory / SETTINGS_FILE, {}
        if cls.settings and path.is_file():
            stored = read_json(files.file(directory, SETTINGS_FILE))
        settings = {
            key: config_lib.build(types[key], stored.get(key, value), f"{path}: {key}")
            for key, value in cls.settings.items()
        }
        for key, value in given.items():
            if value is None:
                continue
            if key not in settings:
                raise ConfigError(
                    f"{key}={value} does not apply to a model fine-tuned for"
                    f" {cls.head.kind}; remove it"
                )
            settings[key] = config_lib.build(types[key], value, key)
        return settings

    @classmethod
    def of_model(
        cls, labels: tuple[str, ...], settings: dict[str, Any], num_best: int
    ) -> Self:
        """Returns a model's task; keys that do not affect predictions are None."""
        values = {"kind": cls.head.kind, "labels": labels, "num_best": num_best}
        values |= settings
        if "num_texts" in settings:
            values["text"] = ("",) * settings["num_texts"]
        fields: Any = cls
        names = [field.name for field in dataclasses.fields(fields)]
        return cls(**{name: values.get(name) for name in names})

    def check(  # noqa: B027
        self, length: int, config: "FinetuneConfig | None" = None
    ) -> None:
        """Checks keys against each other; the task of a trained model has no config."""

    @property
    def labels_key(self) -> str:
        """The config key that has the names of the labels."""
        is_given = getattr(self, "labels", ())
        return "config.task.labels" if is_given else "config.data.train"

    def label_names(self, table: Table) -> tuple[str, ...]:
        """Returns the labels in a training set; () if the head's outputs have none."""
        return ()

    def read(
        self, spec: str, header: tuple[str, ...], names: tuple[str, ...], role: Role
    ) -> tuple[Examples, tuple[str, ...]]:
        """Reads a data set, by default a table; returns the names of labels, too.

        They are determined by the training set, and given for the other sets.
        """
        table = read_table(spec, header, role)
        if role == "train":
            names = getattr(self, "labels", ()) or self.label_names(table)
        examples = self.parse(table, names, role)
        return dataclasses.replace(examples, num_lost_lines=len(table.dropped)), names

    def parse(self, table: Table, names: Sequence[str], role: Role) -> Examples:
        raise NotImplementedError

    def of_inputs(
        self, inputs: list[tuple[str, ...]], settings: dict[str, Any]
    ) -> Examples:
        """Converts inputs of `predict` to unlabelled examples; by default, `Texts`.

        There is at least one, and all have the same number of texts.
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
