"""Examples of a data set, and the texts, labels and scores in columns of tables.

conll.py and squad.py read the other formats.

Shapes: N example, C class.
"""

import abc
import dataclasses
import difflib
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from bert_jax import storage
from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import tables
from bert_jax.finetuning.data.tables import Located, Table

T = TypeVar("T", bound="Examples")
# Values of data sets that usually mean that an example has no label: SNLI has "-", and
# Hugging Face's datasets -1.
_UNLABELLED = ("", "-", "-1", "nan", "null")


@dataclasses.dataclass(frozen=True)
class Examples(abc.ABC):
    """The examples of a data set.

    Counts of lost or mended data are attributes with the names in `setup.LOSSES`.
    """

    @property
    @abc.abstractmethod
    def is_labelled(self) -> bool: ...

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
        if num_unlabelled := getattr(self, "num_unlabelled", 0):
            return f"none of its {num_unlabelled} examples has a label: label them"
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
    num_lost_lines: int = 0  # lines of the table that were dropped
    num_unlabelled: int = 0  # examples that were dropped because they have no label

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


def names_in(values: Iterable[str]) -> tuple[str, ...]:
    """Returns the distinct names, sorted as numbers if all are, else as text."""
    names = set(values)
    numbers = all(map(_is_number, names))
    return tuple(sorted(names, key=float) if numbers else sorted(names))


def name_of(value: Any, where: str) -> str:
    """Returns a label of the data as text; "" for None."""
    if isinstance(value, dict) or tables.as_list(value) is not None:
        raise ConfigError(
            f"{where} has the label {value!r}, but a class is a text or a number; for"
            " lists of classes, set config.task.kind=multi_label"
        )
    return "" if value is None else str(value).strip()


def is_unlabelled(name: str, names: Sequence[str]) -> bool:
    """Returns whether a label is not a class, but usually means that there is none."""
    return name.lower() in _UNLABELLED and name not in names


def parts(value: Any, where: str) -> list[str]:
    """Splits a list of class labels, or comma-separated text; "" has none."""
    found = tables.as_list(value)
    if found is None:
        text = name_of(value, where)
        if text.startswith(("[", "{")):
            raise ConfigError(
                f"{where} has the labels {text!r}, which are not a list; write them as"
                " a,b or as a JSON list"
            )
        found = text.split(",")
    names = [name for name in (name_of(part, where) for part in found) if name]
    if set(names) <= {"0", "1"} and len(set(names)) < len(names):
        raise ConfigError(
            f"{where} has the labels {value!r}, which seem to be a 0 or 1 for each"
            " class; list the names or the numbers of its classes"
        )
    return names


def classes(values: Located, names: Sequence[str], key: str) -> np.ndarray:
    """Returns int32[N], the class of each name or number; -1 if it is not labelled."""
    numbers = _numbers(names)
    found = np.full(len(values), -1, np.int32)
    for i, (value, where) in enumerate(values):
        name = name_of(value, where)
        if not is_unlabelled(name, names):
            found[i] = _find(name, numbers, names, where, key)
    return found


def class_sets(values: Located, names: Sequence[str], key: str) -> np.ndarray:
    """Returns float32[N, C], 1 for the classes of a list or comma-separated text."""
    numbers = _numbers(names)
    found = np.zeros((len(values), len(names)), np.float32)
    for i, (value, where) in enumerate(values):
        for part in parts(value, where):
            found[i, _find(part, numbers, names, where, key)] = 1.0
    return found


def scores(table: Table, column: str, key: str) -> np.ndarray:
    """Returns the finite numbers of a column that a config key names, as float32[N]."""
    values = table.located(column, key)
    found = np.empty(len(values), np.float32)
    for i, (value, where) in enumerate(values):
        try:
            found[i] = float(value)
        except (TypeError, ValueError):
            found[i] = np.nan
        if not np.isfinite(found[i]):
            raise ConfigError(
                f"{where} has {value!r} in the column of {key}; it must be a finite"
                " number"
            )
    return found


def _numbers(names: Sequence[str]) -> dict[str, int]:
    by_name = {name: i for i, name in enumerate(names)}
    # If any name is a number, numbers in the data are names rather than indices.
    if any(map(_is_number, names)):
        return by_name
    return {str(i): i for i in range(len(names))} | by_name


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def _find(
    label: str, numbers: dict[str, int], names: Sequence[str], where: str, key: str
) -> int:
    if label in numbers:
        return numbers[label]
    close = difflib.get_close_matches(label, names, n=1)
    hint = f"; the nearest is {close[0]!r}" if close else ""
    has_numbers = len(numbers) > len(names)
    or_numbers = f", or 0 to {len(names) - 1}" if has_numbers else ""
    raise ConfigError(
        f"{where} has the label {label!r}, which is not in {key}"
        f" ({', '.join(names)}{or_numbers}){hint}"
    )


def write_json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    write_lines(path, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with storage.open_own(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
