"""Tests of the checks by field types, and of the comments that document fields."""

import dataclasses
import inspect
import re
from typing import Annotated, Literal

import pytest

from bert_jax.config import ExperimentConfig
from bert_jax.config.validation import (
    Added,
    Count,
    Fraction,
    Length,
    Positive,
    Probability,
    build,
    complete,
)
from bert_jax.errors import ConfigError
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.tasks import TASKS


@dataclasses.dataclass(frozen=True)
class Circle:
    kind: Literal["circle", "disk"]
    radius: Positive


@dataclasses.dataclass(frozen=True)
class Polygon:
    kind: Literal["polygon"]
    sides: Annotated[tuple[Positive, ...], Length(min=3)]


Shape = Circle | Polygon


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Count, 0, "x=0 must be at least 1"),
        (Positive, 0, "x=0.0 must be above 0"),
        (Fraction, 1.0, "x=1.0 must be at least 0 and below 1"),
        (Probability, 1.5, "x=1.5 must be at least 0 and at most 1"),
        (Count, 1.0, r"x is 1.0 \(float\); it must be of type int"),
        (Count, True, r"x is True \(bool\); it must be of type int"),
        (Literal["a", "b"], "c", "x='c' must be one of a, b"),
        (Literal["a", "b"], ["a"], r"x=\['a'\] must be one of a, b"),
        (tuple[str, ...], "a", r"x is 'a'; it must be a list, for example \['a'\]"),
        (tuple[Count, ...], (1, 0), r"x\[1\]=0 must be at least 1"),
        (Shape, 3, "x is 3; it must be a section with keys"),
        (Shape, {}, "x.kind=None must be one of circle, disk, polygon"),
        (Shape, {"kind": []}, r"x.kind=\[\] must be one of circle, disk, polygon"),
        (Shape, {"kind": "circle"}, "x.radius is missing; copy it"),
        (
            Shape,
            {"kind": "circle", "radiu": 1},
            "x.radiu is not a config key; the nearest is x.radius",
        ),
        (
            Shape,
            {"kind": "polygon", "sides": (1, 2)},
            r"x.sides=\(1.0, 2.0\) has length 2; the length must be at least 3",
        ),
    ],
)
def test_invalid_values_are_errors_with_key_value_and_remedy(kind, value, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        build(kind, value, "x")


def test_valid_values_are_built():
    assert build(Probability, 1, "x") == 1.0
    assert build(Shape, {"kind": "disk", "radius": 2}, "x") == Circle("disk", 2)
    assert build(tuple[Count, ...], [1, 2], "x") == (1, 2)


@dataclasses.dataclass(frozen=True)
class Drawing:
    title: Annotated[str, Added("none")]


@dataclasses.dataclass(frozen=True)
class Book:
    cover: Drawing
    drawings: Annotated[tuple[Drawing, ...], Length(min=1)]


@pytest.mark.parametrize("cover", [{}, {"title": "x"}, 3, None])
def test_keys_that_were_added_later_are_completed_in_every_section(cover):
    values = {"cover": cover, "drawings": [{}]}
    with pytest.raises(ConfigError):
        build(Book, values, "x")
    complete(Book, values)
    completed = {"title": "none"} | cover if isinstance(cover, dict) else cover
    assert values == {"cover": completed, "drawings": [{"title": "none"}]}


def test_every_field_has_a_comment():
    """The documentation's reference of keys is made of these comments."""
    modules = [inspect.getmodule(x) for x in (ExperimentConfig, FinetuneConfig)]
    classes = [base for task in TASKS.values() for base in task.__mro__]
    configs = [x for x in dict.fromkeys(classes) if dataclasses.is_dataclass(x)]
    lines = "".join(map(inspect.getsource, [*modules, *configs])).splitlines()
    found = 0
    for above, line in zip(lines, lines[1:], strict=False):
        field = re.match(r"    (?!kind: Literal)[a-z]\w*: \S", line)
        if field and not re.search(r"(Config|Task)(, \.\.\.)?\b", line):
            assert "  # " in line or above.strip().startswith("#"), line
            found += 1
    assert found > 120
