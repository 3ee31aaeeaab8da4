"""Parses labels into class numbers, sets of classes, or scores."""

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import ConfigError


def names_in(values: Iterable[Any]) -> tuple[str, ...]:
    """Returns the distinct values, sorted as numbers if all are, else as text."""
    names = {str(value).strip() for value in values}
    numbers = all(map(_is_number, names))
    return tuple(sorted(names, key=float) if numbers else sorted(names))


def parts(value: Any) -> list[str]:
    """Splits a list or comma-separated text into class labels; "" has none."""
    if value is None:
        return []
    found = value if isinstance(value, list) else str(value).split(",")
    return [part for part in (str(part).strip() for part in found) if part]


def classes(
    values: Sequence[Any], names: Sequence[str], where: str, key: str
) -> np.ndarray:
    """Returns int32[N], the class of each value.

    Args:
      values: labels as written in the data, each a class name or class number.
      names: class names.
      where: spec of the data, for the error message.
      key: the config key that defines the names, for the error message.

    Raises:
      ConfigError: if a value is neither a class name nor a class number.
    """
    numbers = _numbers(names)
    found = np.empty(len(values), np.int32)
    for i, value in enumerate(values):
        found[i] = _find(value, numbers, names, f"{where}, example {i + 1},", key)
    return found


def class_sets(
    values: Sequence[Any], names: Sequence[str], where: str, key: str
) -> np.ndarray:
    """Returns float32[N, C], 1 for each class of a value and 0 for the others.

    A value is a list of classes, or comma-separated text; "" has no class.

    Args:
      values, names, where, key: see `classes`.

    Raises:
      ConfigError: if a part of a value is neither a class name nor a class number.
    """
    numbers = _numbers(names)
    found = np.zeros((len(values), len(names)), np.float32)
    for i, value in enumerate(values):
        for part in parts(value):
            example = f"{where}, example {i + 1},"
            found[i, _find(part, numbers, names, example, key)] = 1.0
    return found


def scores(values: Sequence[Any], where: str, key: str) -> np.ndarray:
    """Returns the values as float32[N].

    Args:
      values: numbers, or their text.
      where: spec of the data, for the error message.
      key: the config key that names the column, for the error message.

    Raises:
      ConfigError: if a value is not a finite number.
    """
    found = np.empty(len(values), np.float32)
    for i, value in enumerate(values):
        try:
            found[i] = float(value)
        except (TypeError, ValueError):
            found[i] = np.nan
        if not np.isfinite(found[i]):
            raise ConfigError(
                f"{where}, example {i + 1}, has {value!r} in the column of {key}; it"
                " must be a finite number"
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
    value: Any, numbers: dict[str, int], names: Sequence[str], where: str, key: str
) -> int:
    label = str(value).strip()
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
