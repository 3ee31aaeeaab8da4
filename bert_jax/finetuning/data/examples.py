"""Converts tables to examples: texts, text pairs, or contexts with choices; and labels.

conll.py and squad.py read the other formats.

Shapes: N example, C class.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import labels
from bert_jax.finetuning.data.tables import Table, as_list

T = TypeVar("T", "Texts", "Choices")


@dataclasses.dataclass(frozen=True)
class Texts:
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


@dataclasses.dataclass(frozen=True)
class Choices:
    """Contexts, each with the same number of choices.

    Attributes:
      contexts: one text per example.
      choices: the choices of each example.
      labels: int32[N], index of the correct choice, from 0; None for a test set.
      num_lost_lines: lines of the table that were dropped.
      num_unlabelled: examples that were dropped because they have no label.
    """

    contexts: list[str]
    choices: list[list[str]]
    labels: np.ndarray | None
    num_lost_lines: int = 0
    num_unlabelled: int = 0


def label_names(table: Table, column: str, kind: str) -> tuple[str, ...]:
    """Returns the class names that occur in a training set.

    Raises:
      ConfigError: if the column is missing, an example has no label or a label that may
        mean so, or all examples have the same label.
    """
    if kind == "regression":
        return (column,)
    values = table.located(column, "config.task.label")
    if kind == "multi_label":
        return labels.names_in(part for each in values for part in labels.parts(*each))
    found = [labels.name_of(*each) for each in values]
    names = labels.names_in(found)
    unlabelled = [name for name in names if labels.is_unlabelled(name, ())]
    if unlabelled and names != ("-1", "1"):
        raise _unlabelled(table.spec, column, unlabelled[0], found, names)
    if len(names) == 1:
        raise ConfigError(
            f"{table.spec} has {column}={names[0]!r} in all examples; classification"
            " needs examples of at least two classes"
        )
    return names


def _unlabelled(
    spec: str, column: str, value: str, found: list[str], names: tuple[str, ...]
) -> ConfigError:
    """Returns the error for a value that may mean that there is no label."""
    others = tuple(name for name in names if not labels.is_unlabelled(name, ()))
    add = f"; if {value!r} is a class, name it as well" if value else ""
    return ConfigError(
        f"{spec}, example {found.index(value) + 1}, has {column}={value!r}, as"
        f" {found.count(value):,} of {len(found):,} examples; to skip examples without"
        f' a label, name the classes: --config.task.labels="{others}"{add}'
    )


def read_texts(
    table: Table,
    kind: str,
    text: Sequence[str],
    label: str,
    index: str,
    names: Sequence[str],
    labels_key: str,
) -> Texts:
    """Converts a table to texts or text pairs.

    Args:
      table: from `tables.read`.
      kind: classification, regression or multi_label.
      text: one text column, or two for text pairs.
      label: label column; "" for a set without labels.
      index: column of the leaderboard's indices; "" for row numbers.
      names: class names.
      labels_key: the config key that defines the names, for error messages.

    Raises:
      ConfigError: if a column is missing or a label is not among the names.
    """
    a, *b = (_texts(table, column, "config.task.text") for column in text)
    found = None
    if label and kind == "regression":
        found = _scores(table, label, "config.task.label")
    elif label:
        to_numbers = labels.class_sets if kind == "multi_label" else labels.classes
        values = table.column(label, "config.task.label")
        found = to_numbers(values, names, table.spec, labels_key)
    indices = np.arange(len(a))
    if index:
        indices = _scores(table, index, "config.task.index").astype(np.int64)
    examples = Texts(a, b[0] if b else None, found, indices, table.num_dropped)
    return _labelled(examples) if label and kind == "classification" else examples


def read_similarity(
    table: Table,
    text: Sequence[str],
    label: str,
    max_label: float,
    given_as: str = "config.task.max_label",
) -> Texts:
    """Converts a table to text pairs labelled with their target cosines.

    Args:
      table: from `tables.read`.
      text: the two text columns.
      label: column of the similarity score; "" for a set without labels.
      max_label: score whose target cosine is 1.
      given_as: what gives max_label, for error messages.

    Raises:
      ConfigError: if a column is missing or a label is not in [0, max_label].
    """
    found = read_texts(table, "regression", text, label, "", (), "")
    if found.labels is None:
        return found
    for row, value in enumerate(found.labels):
        if not 0 <= value <= max_label:
            raise ConfigError(
                f"{table.spec}, example {row + 1}, has {label}={value:g}; it must be"
                f" between 0 and {given_as}={max_label:g}"
            )
    return dataclasses.replace(found, labels=found.labels / np.float32(max_label))


def read_positives(table: Table, columns: Sequence[str]) -> Texts:
    """Converts a table to pairs of texts that belong together, of target cosine 1.

    Args:
      table: from `tables.read`.
      columns: the two text columns, or one whose texts are paired with themselves.

    Raises:
      ConfigError: if a column is missing.
    """
    a, *b = (_texts(table, column, "config.task.positives") for column in columns)
    labels = np.ones(len(a), np.float32)
    return Texts(a, b[0] if b else a, labels, np.arange(len(a)), table.num_dropped)


def read_choices(
    table: Table, text: Sequence[str], choices: Sequence[str], label: str
) -> Choices:
    """Converts a table to contexts with choices.

    Args:
      table: from `tables.read`.
      text: context column, and optionally a column whose text is prefixed to every
        choice.
      choices: one column per choice, or a single column of lists.
      label: column of the correct choice's index, from 0; "" for a set without labels.

    Raises:
      ConfigError: if a column is missing or a label is not the index of a choice.
    """
    contexts, *prefixes = (_texts(table, column, "config.task.text") for column in text)
    key = "config.task.choices"
    if len(choices) == 1:
        found = [_list(*each) for each in table.located(choices[0], key)]
    else:
        columns = (_texts(table, column, key) for column in choices)
        found = list(map(list, zip(*columns, strict=True)))
    number = len(found[0])
    for row, texts in enumerate(found):
        if len(texts) != number:
            raise ConfigError(
                f"{table.spec}, example {row + 1}, has {len(texts)} choices, but the"
                f" first has {number}; all need the same number"
            )
    if prefixes:
        found = [
            [f"{prefix} {choice}" for choice in texts]
            for prefix, texts in zip(prefixes[0], found, strict=True)
        ]
    numbers = [str(i) for i in range(number)]
    correct = None
    if label:
        values = table.column(label, "config.task.label")
        correct = labels.classes(values, numbers, table.spec, key)
    examples = Choices(contexts, found, correct, table.num_dropped)
    return _labelled(examples) if label else examples


def _labelled(examples: T) -> T:
    """Drops the examples whose label is -1."""
    assert examples.labels is not None
    is_labelled_N = examples.labels >= 0
    kept: dict[str, Any] = {}
    for name, values in vars(examples).items():
        if isinstance(values, list):
            kept[name] = list(itertools.compress(values, is_labelled_N))
        elif isinstance(values, np.ndarray):
            kept[name] = values[is_labelled_N]
    num_unlabelled = int((~is_labelled_N).sum())
    return dataclasses.replace(examples, num_unlabelled=num_unlabelled, **kept)


def _texts(table: Table, column: str, key: str) -> list[str]:
    if column in table.absent:
        raise ConfigError(
            f"{table.spec}, line {table.absent[column]}, has no {column!r}, which {key}"
            " names; add it to every line"
        )
    return [_text(value, where, key) for value, where in table.located(column, key)]


def _scores(table: Table, column: str, key: str) -> np.ndarray:
    return labels.scores(table.column(column, key), table.spec, key)


def _list(value: Any, where: str) -> list[str]:
    key = "config.task.choices"
    found = as_list(value)
    if found is None:
        raise ConfigError(
            f"{where} has {value!r} in the only column of {key}; a single column must"
            " contain lists"
        )
    return [_text(item, where, key) for item in found]


def _text(value: Any, where: str, key: str) -> str:
    """Returns a value as text; "" for null.

    Raises:
      ConfigError: if it is a list or an object.
    """
    if isinstance(value, list | dict):
        raise ConfigError(
            f"{where} has {value!r} in a column of {key}; write a text, not a"
            f" {'list' if isinstance(value, list) else 'JSON object'}"
        )
    return "" if value is None else str(value)
