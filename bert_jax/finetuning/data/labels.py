"""Parses labels into class numbers, sets of classes, or scores.

Shapes: N example, C class.
"""

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import tables
from bert_jax.finetuning.data.tables import Located, Table

# Values of data sets that usually mean that an example has no label: SNLI has "-", and
# Hugging Face's datasets -1.
_UNLABELLED = ("", "-", "-1", "nan", "null")


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
    """Returns int32[N], the class of each value; -1 if it is not labelled.

    Args:
      values: labels as written in the data, each a class name or class number.
      key: the config key that defines the names, for the error message.
    """
    numbers = _numbers(names)
    found = np.full(len(values), -1, np.int32)
    for i, (value, where) in enumerate(values):
        name = name_of(value, where)
        if not is_unlabelled(name, names):
            found[i] = _find(name, numbers, names, where, key)
    return found


def class_sets(values: Located, names: Sequence[str], key: str) -> np.ndarray:
    """Returns float32[N, C], 1 for each class of a value and 0 for the others.

    A value is a list of classes, or comma-separated text; the rest is as in `classes`.
    """
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
