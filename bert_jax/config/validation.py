"""Builds frozen dataclasses from plain values; the field types declare the limits.

    learning_rate: Annotated[float, Range(above=0)]
    schedule: Literal["linear", "cosine"]
    log_every_steps: Resumable[Count]

An invalid value raises a ConfigError of one line with the key, value and remedy.
"""

import dataclasses
import difflib
import enum
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

import ml_collections

from bert_jax import storage
from bert_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Range:
    """The range of a number; its str() is, for example, "at least 0 and below 1"."""

    min: float = -math.inf  # inclusive, as is max
    above: float = -math.inf  # exclusive, as is below
    max: float = math.inf
    below: float = math.inf

    def __str__(self) -> str:
        words = ("at least", "above", "at most", "below")
        limits = zip(words, dataclasses.astuple(self), strict=True)
        return " and ".join(f"{word} {x}" for word, x in limits if abs(x) < math.inf)

    def check(self, key: str, value: float) -> float:
        ok = self.min <= value <= self.max and self.above < value < self.below
        require(ok, key, value, f"must be {self}")
        return value


@dataclasses.dataclass(frozen=True)
class Length:
    """The number of values in a list; its str() is, for example, "at least 1"."""

    min: int  # inclusive, as is max
    max: float = math.inf

    def __str__(self) -> str:
        if self.max == math.inf:
            return f"at least {self.min}"
        return f"{self.min}" if self.max == self.min else f"{self.min} to {self.max}"

    def check(self, key: str, value: tuple[Any, ...]) -> tuple[Any, ...]:
        ok = self.min <= len(value) <= self.max
        require(ok, key, value, f"has length {len(value)}; the length must be {self}")
        return value


@dataclasses.dataclass(frozen=True)
class LocalOrUrl:
    """A path, see `storage.parse_path`."""

    may_be_empty: bool = False

    def __str__(self) -> str:
        return "a path"

    def check(self, key: str, value: str) -> str:
        """Returns the path in its normal form."""
        is_none = self.may_be_empty and not value
        return value if is_none else storage.parse_path(key, value)


class MayChange(enum.Enum):
    """Marks a key that may change after a run began, or a section of such keys."""

    ON_RESUME = enum.auto()
    IN_BRANCH = enum.auto()


@dataclasses.dataclass(frozen=True)
class Added:
    """Marks a key that is younger than some runs.

    A run whose config.json lacks the key continues with `value`, as it began. A config
    file has to set the key.
    """

    value: Any


T = TypeVar("T")
Mark = MayChange | Added
Resumable = Annotated[T, MayChange.ON_RESUME]
Branchable = Annotated[T, MayChange.IN_BRANCH]
Path = Annotated[str, LocalOrUrl()]
PathOrEmpty = Annotated[str, LocalOrUrl(may_be_empty=True)]
Count = Annotated[int, Range(min=1)]
CountOrZero = Annotated[int, Range(min=0)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(min=0)]
Fraction = Annotated[float, Range(min=0, below=1)]
Probability = Annotated[float, Range(min=0, max=1)]


def build(kind: Any, values: Any, path: str) -> Any:
    """Builds a value of type `kind` from plain values, and checks its range.

    The type is a dataclass, a union of dataclasses with a field `kind`, tuple[X, ...],
    a Literal, a scalar, or one of these in Annotated with limits. Errors name the path.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        value = build(arguments[0], values, path)
        for limit in arguments[1:]:
            if not isinstance(limit, Mark):
                value = limit.check(path, value)
        return value
    if origin is Literal:
        require(values in arguments, path, values, one_of(arguments, values))
        return values
    if dataclasses.is_dataclass(kind) or origin is types.UnionType:
        if not isinstance(values, Mapping | ml_collections.ConfigDict):
            raise ConfigError(f"{path} is {values!r}; it must be a section with keys")
        if origin is types.UnionType:
            by_kind, name = members(kind), cast(Any, values).get("kind")
            require(name in list(by_kind), f"{path}.kind", name, one_of(by_kind))
            kind = by_kind[name]
        return _build_section(kind, values, path)
    if origin is tuple:
        if not isinstance(values, list | tuple):
            raise ConfigError(
                f"{path} is {values!r}; it must be a list, for example [{values!r}]"
            )
        return tuple(
            build(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(values)
        )
    return _build_scalar(kind, values, path)


def _build_section(kind: Any, values: Any, path: str) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    known = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.0)
            raise ConfigError(
                f"{path}.{key} is not a config key; the nearest is {path}.{close[0]}"
            )
    for key in known:
        if key not in values:
            raise ConfigError(f"{path}.{key} is missing; copy it from another config")
    return kind(**{k: build(known[k], values[k], f"{path}.{k}") for k in known})


def complete(kind: Any, values: Any) -> None:
    """Adds the keys marked as Added that the values of an older config lack."""
    if typing.get_origin(kind) is Annotated:
        kind = kind.__origin__
    if typing.get_origin(kind) is tuple and isinstance(values, list):
        for item in values:
            complete(typing.get_args(kind)[0], item)
    if not dataclasses.is_dataclass(kind) or not isinstance(values, dict):
        return  # otherwise, building the config raises
    for key, hint in typing.get_type_hints(kind, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, Added):
                values.setdefault(key, mark.value)
        complete(hint, values.get(key))


def leaves(
    value: Any, path: str = "", marks: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yields (key, value, marks of the key and its sections) of a built config."""
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}[{i}]", marks)
    elif dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value), include_extras=True)
        for key, hint in hints.items():
            own = getattr(hint, "__metadata__", ())
            inner = f"{path}.{key}" if path else key
            yield from leaves(getattr(value, key), inner, (*marks, *own))
    else:
        yield path, value, marks


def members(union: Any) -> dict[str, Any]:
    """Returns {value of `kind`: dataclass} of a union of dataclasses."""
    return {
        kind: member
        for member in typing.get_args(union)
        for kind in typing.get_args(typing.get_type_hints(member)["kind"])
    }


def _build_scalar(kind: type, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(
            f"{path} is {value!r} ({type(value).__name__});"
            f" it must be of type {kind.__name__}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path} is {value}; it must be a finite number")
    return value


def require(ok: bool, key: str, value: Any, problem: str) -> None:
    """Raises ConfigError with key, value and problem unless `ok`."""
    if not ok:
        raise ConfigError(f"{key}={value!r} {problem}")


def one_of(choices: Iterable[str], value: Any = None) -> str:
    """Returns the end of the error message for a value that is not a choice."""
    choices = list(choices)
    nearest = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"; the nearest is {nearest[0]}" if nearest else ""
    return f"must be one of {', '.join(choices)}{hint}"


def multiples_around(size: int, divisor: int) -> str:
    """Returns the nearest positive multiples of `divisor`, for example "12 or 24"."""
    below = size // divisor * divisor
    return " or ".join(str(n) for n in (below, below + divisor) if n)


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Returns the leaves of a dict or ConfigDict by path: phases[0].num_steps."""
    if hasattr(value, "items"):
        items = [(f"{path}.{key}" if path else key, v) for key, v in value.items()]
    elif isinstance(value, list | tuple) and value and hasattr(value[0], "items"):
        items = [(f"{path}[{i}]", v) for i, v in enumerate(value)]
    else:
        return {path: value}
    return {k: v for sub, inner in items for k, v in flatten(inner, sub).items()}
