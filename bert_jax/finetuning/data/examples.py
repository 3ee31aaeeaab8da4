"""A table's rows -> texts, pairs of texts, or contexts with choices, and labels.

What comes in other formats than tables is read by conll.py and squad.py.

Shapes: N example, C class.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import labels
from bert_jax.finetuning.data.tables import Table


@dataclasses.dataclass(frozen=True)
class Texts:
    """Single texts or pairs, of classification, regression and multi-label tasks.

    Attributes:
      a: texts.
      b: the others of the pairs; None for single texts.
      labels: int32[N] classes, float32[N] scores or float32[N, C] sets of classes;
        None for a test set.
      index: int64[N], the place of each in its leaderboard's file.
      num_lost_lines: lines of the table that are not among them.
    """

    a: list[str]
    b: list[str] | None
    labels: np.ndarray | None
    index: np.ndarray
    num_lost_lines: int = 0


@dataclasses.dataclass(frozen=True)
class Choices:
    """Contexts, each with the same number of texts that may go on with it.

    Attributes:
      contexts: texts.
      choices: of each context.
      labels: int32[N], the right choice from 0; None for a test set.
      num_lost_lines: as of `Texts`.
    """

    contexts: list[str]
    choices: list[list[str]]
    labels: np.ndarray | None
    num_lost_lines: int = 0


def label_names(table: Table, column: str, kind: str) -> tuple[str, ...]:
    """Returns the names of the classes that a training set has.

    Raises:
      ConfigError: when there is no such column, an example has no label, or all have
        the same one.
    """
    if kind == "regression":
        return (column,)
    values = table.column(column, "config.task.label")
    if kind == "multi_label":
        return labels.names_in(part for value in values for part in labels.parts(value))
    for row, value in enumerate(values):
        if value is None or not str(value).strip():
            raise ConfigError(
                f"{table.spec}, example {row + 1}, has no {column!r}; leave the example"
                " out, or give it a label"
            )
    names = labels.names_in(values)
    if len(names) == 1:
        raise ConfigError(
            f"{table.spec} has the {column!r} {names[0]!r} alone; a classification"
            " needs examples of two classes at least"
        )
    return names


def read_texts(
    table: Table,
    kind: str,
    text: Sequence[str],
    label: str,
    index: str,
    names: Sequence[str],
    labels_key: str,
) -> Texts:
    """Returns the examples of a table.

    Args:
      table: from `tables.read`.
      kind: classification, regression or multi_label.
      text: the column of the text, or the two of a pair.
      label: the column of the label; "" where there is none.
      index: the column of the places; "" for those in the table.
      names: of the classes.
      labels_key: the config key that the names are from, for error messages.

    Raises:
      ConfigError: when a column is not there or a label not known.
    """
    a, *b = (_texts(table, column, "config.task.text") for column in text)
    found = None
    if label and kind == "regression":
        found = _scores(table, label, "config.task.label")
    elif label:
        to_numbers = labels.class_sets if kind == "multi_label" else labels.classes
        values = table.column(label, "config.task.label")
        found = to_numbers(values, names, table.spec, labels_key)
    places = np.arange(len(a))
    if index:
        places = _scores(table, index, "config.task.index").astype(np.int64)
    return Texts(a, b[0] if b else None, found, places, table.num_dropped)


def read_nearness(
    table: Table, text: Sequence[str], label: str, max_label: float
) -> Texts:
    """Returns pairs of texts with the cosines that they should have.

    Args:
      table: from `tables.read`.
      text: the columns of the two.
      label: the column of how near they are; "" where there is none.
      max_label: what stands there for a cosine of 1.

    Raises:
      ConfigError: when a column is not there, or a label no number from 0 to that.
    """
    found = read_texts(table, "regression", text, label, "", (), "")
    if found.labels is None:
        return found
    for row, value in enumerate(found.labels):
        if not 0 <= value <= max_label:
            raise ConfigError(
                f"{table.spec}, example {row + 1}, has {label}={value:g}; it must be"
                f" from 0 to config.task.max_label={max_label:g}"
            )
    return dataclasses.replace(found, labels=found.labels / np.float32(max_label))


def read_choices(
    table: Table, text: Sequence[str], choices: Sequence[str], label: str
) -> Choices:
    """Returns the examples of a table.

    Args:
      table: from `tables.read`.
      text: the column of the context, and of what every choice begins with if there is
        such a column.
      choices: a column for each choice, or one whose values are lists.
      label: the column of the right choice, counted from 0; "" where there is none.

    Raises:
      ConfigError: when a column is not there or a label is no choice's number.
    """
    contexts, *beginnings = (
        _texts(table, column, "config.task.text") for column in text
    )
    key = "config.task.choices"
    if len(choices) == 1:
        found = [_list(value, table) for value in table.column(choices[0], key)]
    else:
        columns = (_texts(table, column, key) for column in choices)
        found = list(map(list, zip(*columns, strict=True)))
    number = len(found[0])
    for row, texts in enumerate(found):
        if len(texts) != number:
            raise ConfigError(
                f"{table.spec}, example {row + 1}, has {len(texts)} choices, the first"
                f" has {number}"
            )
    if beginnings:
        found = [
            [f"{beginning} {choice}" for choice in texts]
            for beginning, texts in zip(beginnings[0], found, strict=True)
        ]
    numbers = [str(i) for i in range(number)]
    right = None
    if label:
        values = table.column(label, "config.task.label")
        right = labels.classes(values, numbers, table.spec, key)
    return Choices(contexts, found, right, table.num_dropped)


def _texts(table: Table, column: str, key: str) -> list[str]:
    return [_text(value) for value in table.column(column, key)]


def _scores(table: Table, column: str, key: str) -> np.ndarray:
    return labels.scores(table.column(column, key), table.spec, key)


def _list(value: Any, table: Table) -> list[str]:
    if not isinstance(value, list):
        raise ConfigError(
            f"{table.spec} has {value!r} in the one column of config.task.choices; it"
            " must hold lists"
        )
    return [_text(item) for item in value]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
