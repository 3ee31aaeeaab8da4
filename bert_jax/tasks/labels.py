"""What people write for labels -> numbers, by the names of a head's classes."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.config import ConfigError


def names_in(values: Iterable[Any]) -> tuple[str, ...]:
    """Returns the distinct values, numbers by size and the rest by the alphabet."""
    names = {str(value) for value in values}
    numbers = all(name.lstrip("-").isdecimal() for name in names)
    return tuple(sorted(names, key=int) if numbers else sorted(names))


def classes(values: Sequence[Any], names: Sequence[str], where: str) -> np.ndarray:
    """Returns int32[N], the class of each value: one of the names, or its number.

    Raises:
      ConfigError: for the first value that is neither; `where` names the data.
    """
    numbers = _numbers(names)
    found = np.empty(len(values), np.int32)
    for i, value in enumerate(values):
        found[i] = _find(value, numbers, names, where, i)
    return found


def class_sets(values: Sequence[Any], names: Sequence[str], where: str) -> np.ndarray:
    """Returns float32[N, C], 1 for each class of a value.

    A value is a list, or text with commas between classes; "" has none.

    Raises:
      ConfigError: as `classes`.
    """
    numbers = _numbers(names)
    found = np.zeros((len(values), len(names)), np.float32)
    for i, value in enumerate(values):
        parts = value if isinstance(value, list) else str(value).split(",")
        for part in parts:
            if part != "" or isinstance(value, list):
                found[i, _find(part, numbers, names, where, i)] = 1.0
    return found


def scores(values: Sequence[Any], where: str) -> np.ndarray:
    """Returns float32[N].

    Raises:
      ConfigError: for the first value that is no finite number.
    """
    found = np.empty(len(values), np.float32)
    for i, value in enumerate(values):
        try:
            found[i] = float(value)
        except (TypeError, ValueError):
            found[i] = np.nan
        if not np.isfinite(found[i]):
            raise ConfigError(
                f"{where}, example {i + 1}, has the score {value!r}; it must be a"
                " number"
            )
    return found


def _numbers(names: Sequence[str]) -> dict[str, int]:
    by_number = {str(i): i for i in range(len(names))}
    return by_number | {name: i for i, name in enumerate(names)}


def _find(
    value: Any, numbers: dict[str, int], names: Sequence[str], where: str, row: int
) -> int:
    label = str(value).strip()
    if label in numbers:
        return numbers[label]
    close = difflib.get_close_matches(label, names, n=1, cutoff=0.0)
    hint = f"; the nearest is {close[0]!r}" if close else ""
    raise ConfigError(
        f"{where}, example {row + 1}, has the label {label!r}; the labels are"
        f" {', '.join(names)}{hint}"
    )
