"""Flags that override keys of a config: `--config.KEY=VALUE`.

The value of a list is one item, several items separated by commas, or a Python tuple. A
key or flag that does not exist is an error that names the nearest one.
"""

import ast
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import ml_collections

from bert_jax.errors import ConfigError

# Names in other software -> ours.
ALIASES = {
    "lr": ("learning_rate",),
    "steps": ("num_steps",),
    "max_steps": ("num_steps",),
    "epochs": ("num_epochs", "num_steps"),
    "output_dir": ("workdir", "output"),
    "model": ("init_from",),
    "model_name_or_path": ("model", "init_from"),
    "data": ("sources", "train"),
}
_FLAG = re.compile(r"--?(?:no)?config\.([^=]*)(=)?", re.S)


def keys_of(arguments: Sequence[str]) -> frozenset[str]:
    """Returns the keys that arguments set, such as "model.hidden_size"."""
    return frozenset(match[1] for match in map(_FLAG.match, arguments) if match)


def values_of(value: Any, path: str = "") -> dict[str, Any]:
    """Returns what flags can set, by key: values, sections, and values in sections."""
    values = {path: value} if path else {}
    items: list[tuple[str, Any]] = []
    if isinstance(value, ml_collections.ConfigDict):
        items = [(f"{path}.{key}" if path else key, value[key]) for key in value]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        items = [
            pair for pair in items if isinstance(pair[1], ml_collections.ConfigDict)
        ]
    for inner, item in items:
        values |= values_of(item, inner)
    return values


def check_keys(
    arguments: Sequence[str], config: ml_collections.ConfigDict, file: str
) -> None:
    """Raises ConfigError with the nearest key if one of the keys does not exist."""
    known = values_of(config)
    for key in sorted(keys_of(arguments) - known.keys()):
        near = nearest(key, known)
        remedy = (
            f"the nearest is --config.{near}" if near else f"the keys are in {file}"
        )
        raise ConfigError(f"--config.{key} is not a config key; {remedy}")


def unknown_flag(
    name: str, flags: Iterable[str], config: ml_collections.ConfigDict | None
) -> str:
    """Returns the error message for a flag that a command does not have."""
    values = values_of(config)
    keys = [
        k for k, v in values.items() if not isinstance(v, ml_collections.ConfigDict)
    ]
    near = nearest(name, [*flags, *(f"config.{key}" for key in keys)])
    remedy = f"the nearest is --{near}" if near else "see --help"
    return f"--{name} is not a flag; {remedy}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the most similar of the known names, or None if none is similar."""
    known = list(known)
    by_part = {_last(other): other for other in reversed(known)}
    for alias in ALIASES.get(_last(name), ()):
        if alias in by_part:
            return by_part[alias]
    same = [other for other in known if _last(other) == _last(name)]
    if len(same) == 1:  # a key of another section
        return same[0]
    if "." in name:
        by_part = {other: other for other in known}
    close = difflib.get_close_matches(name, by_part, n=1)
    return by_part[close[0]] if close else None


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def with_tuples(
    arguments: Sequence[str], config: ml_collections.ConfigDict
) -> list[str]:
    """Writes the plain values of lists as Python tuples, for ml_collections."""
    values = values_of(config)
    result: list[str] = []
    is_item = False  # whether the argument before names a list, without a value
    for argument in arguments:
        match = None if is_item else _FLAG.match(argument)
        is_list = match is not None and isinstance(values.get(match[1]), tuple)
        if is_item:
            argument = _as_tuple(argument)
        elif match and is_list and match[2]:
            argument = match[0] + _as_tuple(argument[match.end() :])
        is_item = match is not None and is_list and not match[2]
        result.append(argument)
    return result


def _as_tuple(text: str) -> str:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if not text.startswith(("(", "[")):
            return repr(tuple(item for item in text.split(",") if item))
    return text


def expected(argument: str, config: ml_collections.ConfigDict | None) -> str:
    """Returns why the value of --config.KEY=VALUE is invalid; "" for other flags."""
    match = _FLAG.match(argument)
    if not match:
        return ""
    value = values_of(config).get(match[1])
    if isinstance(value, ml_collections.ConfigDict):
        key = f"--config.{match[1]}.{next(iter(value))}"
        return f"it is a section; set its keys, for example {key}"
    if isinstance(value, tuple):
        return "it must be a list, for example A,B or \"('A', 'B')\""
    if isinstance(value, bool):
        return "it must be True or False"
    return f"it must be of type {type(value).__name__}"
