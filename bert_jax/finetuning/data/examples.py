"""Examples of a data set, and the parts of tables that they are made of.

conll.py and squad.py read the other formats.

Shapes: N example, C class.
"""

import abc
import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from bert_jax import storage
from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import tables
from bert_jax.finetuning.data.tables import Table

T = TypeVar("T", bound="Examples")


@dataclasses.dataclass(frozen=True)
class Examples(abc.ABC):
    """The examples of a data set.

    Counts of lost or mended data are attributes with the names in `setup.LOSSES`.
    """

    @property
    @abc.abstractmethod
    def is_labelled(self) -> bool:
        """Returns whether the examples have labels."""

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
        """Returns the labelled and the predicted class of every example or word.

        The result is None without labels, or if they are not single classes.
        """
        return None

    def size(self, num_rows: int) -> str:
        """Returns the number of examples and rows, to print."""
        return f"{num_rows:,} rows"

    def why_empty(self) -> str:
        """Returns why the data set has no rows, and what to do."""
        if num_unlabelled := getattr(self, "num_unlabelled", 0):
            return f"none of its {num_unlabelled} examples has a label: label them"
        return "give a non-empty data set"


@dataclasses.dataclass(frozen=True)
class Texts(Examples):
    """Texts or text pairs for classification, regression, multi-label or similarity.

    Attributes:
      a: single texts, or the first texts of pairs.
      b: the second texts of pairs; None for single texts.
      labels: int32[N] classes, float32[N] scores or float32[N, C] sets of classes;
        None for a test set.
      index: int64[N], each example's index in the leaderboard's file.
      num_lost_lines: lines of the table that were dropped.
      num_unlabelled: examples that were dropped because they have no label.
    """

    a: list[str]
    b: list[str] | None
    labels: np.ndarray | None
    index: np.ndarray
    num_lost_lines: int = 0
    num_unlabelled: int = 0

    @property
    def is_labelled(self) -> bool:
        return self.labels is not None

    def write(self, directory: Path, predicted: Any, names: Sequence[str]) -> None:
        rows = []
        for i, value in enumerate(predicted.tolist()):
            pair = {} if self.b is None else {"pair": self.b[i]}
            rows.append({"text": self.a[i], **pair, "label": _label(value, names)})
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


def _label(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [name for name, is_there in zip(names, value, strict=True) if is_there]
    return value if isinstance(value, float) else names[value]


def read_table(spec: str, header: tuple[str, ...], *, is_test: bool) -> Table:
    """Reads a table of examples, all lines of a test set."""
    table = tables.read(spec, header)
    if table.num_dropped and is_test:
        raise ConfigError(
            f"{spec}: line {table.first_dropped} has a different number of columns than"
            f" the first line (as do {table.num_dropped} lines in all); a test set"
            " needs a prediction for every line, so correct them"
        )
    return table


def labelled(examples: T) -> T:
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


def texts(table: Table, column: str, key: str) -> list[str]:
    """Returns the texts of a column that a config key names."""
    if column in table.absent:
        raise ConfigError(
            f"{table.spec}, line {table.absent[column]}, has no {column!r}, which {key}"
            " names; add it to every line"
        )
    return [text(value, where, key) for value, where in table.located(column, key)]


def text(value: Any, where: str, key: str) -> str:
    """Returns a value as text; "" for null."""
    if isinstance(value, list | dict):
        raise ConfigError(
            f"{where} has {value!r} in a column of {key}; write a text, not a"
            f" {'list' if isinstance(value, list) else 'JSON object'}"
        )
    return "" if value is None else str(value)


def write_json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes one JSON object per line."""
    write_lines(path, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a text file."""
    with storage.open_own(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
