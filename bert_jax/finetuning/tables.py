"""Reads tables from files and TensorFlow Datasets, and the labels in their columns.

tsv:PATH      tab-separated, without quoting, as in GLUE
csv:PATH      separated by commas, by semicolons if the first line has no comma, or as
              a first line sep=; says; fields with separators, quotes or line breaks
              are quoted
jsonl:PATH    one JSON object per line; its keys are the columns
parquet:PATH  its columns
tfds:NAME:SPLIT   a dataset of TensorFlow Datasets, with classes converted to their
              names; SPLIT may be a slice such as train[:10%]

The first line of a tsv or csv names the columns, unless the caller does. A byte order
mark is removed. Text must be UTF-8, and may be compressed with gzip, bzip2, xz or zstd.

Shapes: N example, C class.
"""

import ast
import collections
import csv
import dataclasses
import difflib
import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from bert_jax.data.sources import json_lines, lines, parquet
from bert_jax.data.sources import tfds as tfds_lib
from bert_jax.errors import ConfigError

# GLUE's files have a few malformed lines. If more than this share of lines is
# malformed, the file has another format.
MAX_DROPPED = 0.01
csv.field_size_limit(2**30)  # for the whole process; the default is 131,072
# Values of data sets that usually mean that an example has no label: SNLI has "-", and
# Hugging Face's datasets -1.
_UNLABELLED = ("", "-", "-1", "nan", "null")
T = TypeVar("T")
LABEL = "config.task.label"


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns of equal length, by name."""

    spec: str  # for error messages
    # values by column name; strings, or any JSON value for jsonl
    columns: dict[str, list[Any]]
    # numbers of the lines that were dropped, which do not have a value for each name
    dropped: Sequence[int] = ()
    # line number of the first object that lacks a column, which is None there
    absent: Mapping[str, int] = dataclasses.field(default_factory=dict)
    repeated: Collection[str] = ()  # names of several columns, which cannot be used

    def column(self, name: str, key: str = "") -> list[Any]:
        """Returns the values of a column, named by the config key or by the format."""
        if name in self.repeated:
            raise ConfigError(
                f"{self.spec} has several columns {name!r}; rename all but one"
            )
        if name in self.columns:
            return self.columns[name]
        hint, close = "", difflib.get_close_matches(name, self.columns, n=1)
        is_separated = self.spec.startswith(("csv:", "tsv:"))
        if key and is_separated and (not close or len(self.columns) == 1):
            hint = (
                "; if the first line of all files is data, name the columns in"
                " config.data.header;"
                " tsv: is for tabs between columns, and csv: for commas"
            )
        elif close:
            hint = f"; the nearest is {close[0]!r}"
        given = f"{key}={name!r}: " if key else ""
        raise ConfigError(
            f"{given}{self.spec} has no column {name!r}; its columns are"
            f" {', '.join(self.columns) or 'none'}{hint}"
        )

    def convert(self, name: str, key: str, function: Callable[[Any], T]) -> list[T]:
        """Converts the values of a column; a ValueError gets the number of its row."""
        found = []
        for i, value in enumerate(self.column(name, key), start=1):
            try:
                found.append(function(value))
            except ValueError as error:
                raise ConfigError(f"{self.spec}, example {i}, {error}") from None
        return found


def read(spec: str, header: tuple[str, ...] = ()) -> Table:
    """Reads a whole table; `header` has the column names of a file without them."""
    kind, separator, argument = spec.partition(":")
    if not separator or kind not in _READERS:
        raise ConfigError(
            f"{spec!r} is not a spec of labelled data; it must begin with one of"
            f" {', '.join(f'{name}:' for name in _READERS)} as in csv:train.csv;"
            " question answering also has squad:, and tagging conll:"
        )
    check_header(spec, header)
    table = _READERS[kind](spec, argument, header)
    if not any(table.columns.values()):
        raise ConfigError(f"{spec} has no rows")
    return table


def check_header(spec: str, header: tuple[str, ...]) -> None:
    """Raises ConfigError if columns are named of a data set that names its own."""
    if header and not spec.startswith(("csv:", "tsv:")):
        raise ConfigError(
            f"{spec}: config.data.header={header} names the columns of a csv: or tsv:"
            " file; set config.data.header=()"
        )


def _tsv(spec: str, path: str, header: tuple[str, ...]) -> Table:
    rows = ((number, line.split("\t")) for number, line in lines_of(path))
    return _from_rows(spec, path, rows, header)


def _csv(spec: str, path: str, header: tuple[str, ...]) -> Table:
    text = (line + "\n" for _, line in lines_of(path))
    first, number = next(text, ""), 0
    # Spreadsheets write semicolons where the comma is the decimal separator.
    outside = re.sub('"[^"]*"?', "", first)
    has_one = ";" in outside and "," not in outside and len(header) != 1
    delimiter = ";" if has_one else ","
    if first.startswith("sep="):  # of Excel
        delimiter, first, number = first[4:5].strip("\n") or ",", next(text, ""), 1
    options = {"delimiter": delimiter, "skipinitialspace": True, "strict": True}
    reader = csv.reader(itertools.chain([first], text), **options)
    rows: list[tuple[int, list[str]]] = []
    try:
        for row in reader:
            rows.append((number + reader.line_num, row))
    except csv.Error as error:
        first_line = rows[-1][0] + 1 if rows else number + 1
        raise ConfigError(
            f"{path}:{first_line}: {error} in the row that begins here; close its"
            " quotes, and write a quote inside of a quoted field twice"
        ) from None
    return _from_rows(spec, path, iter(rows), header)


def lines_of(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) for every line of a file."""
    return lines.read(path, lines.Reading(collections.Counter()))


def _from_rows(
    spec: str, path: str, rows: Iterator[tuple[int, list[str]]], header: tuple[str, ...]
) -> Table:
    first = next((row for _, row in rows if any(row)), []) if not header else header
    names = [name.strip() for name in first]
    kept: list[list[str]] = []
    dropped: list[tuple[int, int]] = []
    for number, row in rows:
        if header and [cell.strip() for cell in row] == names:
            raise ConfigError(
                f"{path}:{number} has the names of config.data.header, which is for"
                " files without such a line; remove the line, or the key"
            )
        if len(row) == len(names):
            kept.append(row)
        elif any(row):  # not a blank line
            dropped.append((number, len(row)))
    if len(dropped) > MAX_DROPPED * (len(kept) + len(dropped)):
        number, found = dropped[0]
        raise ConfigError(
            f"{path}:{number} has {found} columns, but there are {len(names)} column"
            f" names ({', '.join(names)}); {len(dropped)} lines have a wrong number of"
            " columns: correct the spec or the lines; in a csv, a text with a comma is"
            " quoted"
        )
    table = {name: [row[i] for row in kept] for i, name in enumerate(names)}
    numbers = [number for number, _ in dropped]
    repeated = [name for name, count in collections.Counter(names).items() if count > 1]
    return Table(spec, table, numbers, repeated=repeated)


def _jsonl(spec: str, path: str, header: tuple[str, ...]) -> Table:
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in lines_of(path):
        if not line.strip():
            continue
        row = json_lines.parse(line, f"{path}:{number}")
        rows.append((number, encodable(row)))
    names = dict.fromkeys(name for _, row in rows for name in row)
    columns = {name: [row.get(name) for _, row in rows] for name in names}
    absent = {name: n for n, row in reversed(rows) for name in names if name not in row}
    return Table(spec, columns, absent=absent)


def encodable(value: Any) -> Any:
    """Replaces unpaired surrogates in a JSON value by "?".

    JSON can express them, but UTF-8 cannot, so predictions could not be written.
    """
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _parquet(spec: str, path: str, header: tuple[str, ...]) -> Table:
    with parquet.opened(path) as file:
        names, found = file.schema_arrow.names, file.read().to_pydict()
    columns = {
        name: [x.decode(errors="replace") if isinstance(x, bytes) else x for x in cells]
        for name, cells in found.items()
    }
    repeated = [name for name in columns if names.count(name) > 1]
    return Table(spec, columns, repeated=repeated)


def _tfds(spec: str, argument: str, header: tuple[str, ...]) -> Table:
    name, split = tfds_lib.name_and_split(argument)
    if not split:
        raise ConfigError(f"{spec} names no split; give one, for example {spec}:train")
    builder = tfds_lib.builder(name, spec)
    dataset = tfds_lib.dataset(builder, split, spec)
    features = builder.info.features
    columns: dict[str, list[Any]] = {key: [] for key in features}
    for example in dataset.as_numpy_iterator():
        for key, values in columns.items():
            values.append(_as_python(example[key], features[key]))
    return Table(spec, columns)


def _as_python(value: Any, feature: Any) -> Any:
    """Converts bytes to str and classes to their names; hidden test classes to ""."""
    if isinstance(value, dict):  # values are scalars, or arrays if it is a sequence
        inner = getattr(feature, "feature", feature)
        return {key: _as_python(item, inner[key]) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if getattr(value, "ndim", 0):
        inner = getattr(feature, "feature", feature)
        return [_as_python(item, inner) for item in value]
    if hasattr(feature, "int2str"):
        return "" if value < 0 else feature.int2str(value)
    return value.item() if hasattr(value, "item") else value


_READERS: dict[str, Callable[[str, str, tuple[str, ...]], Table]] = {
    "tsv": _tsv,
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
    "tfds": _tfds,
}


def texts(table: Table, column: str, key: str) -> list[str]:
    """Returns the texts of a column that a config key names."""
    if column in table.absent:
        raise ConfigError(
            f"{table.spec}, line {table.absent[column]}, has no {column!r}, which {key}"
            " names; add it to every line"
        )
    return table.convert(column, key, lambda value: text(value, key))


def text(value: Any, key: str) -> str:
    """Returns a value as text; "" for null."""
    if isinstance(value, list | dict):
        raise ValueError(
            f"has {value!r} in a column of {key}; write a text, not a"
            f" {'list' if isinstance(value, list) else 'JSON object'}"
        )
    return "" if value is None else str(value)


def names_in(values: Iterable[str]) -> tuple[str, ...]:
    """Returns the distinct names, sorted as numbers if all are, else as text."""
    names = set(values)
    numbers = all(map(_is_number, names))
    # By their text, too: 1 and 1.0 are different names.
    return tuple(sorted(names, key=lambda x: (float(x) if numbers else 0, x)))


def name_of(value: Any) -> str:
    """Returns a label of the data as text; "" for None."""
    if isinstance(value, dict) or as_list(value) is not None:
        raise ValueError(
            f"has the label {value!r}, but a class is a text or a number; for lists of"
            " classes, set config.task.kind=multi_label"
        )
    return "" if value is None else str(value).strip()


def is_unlabelled(name: str, names: Sequence[str]) -> bool:
    """Returns whether a label is not a class, but usually means that there is none."""
    return name.lower() in _UNLABELLED and name not in names


def parts(value: Any) -> list[str]:
    """Splits a list of class labels, or comma-separated text; "" has none."""
    found = as_list(value)
    if found is None:
        text = name_of(value)
        if text.startswith(("[", "{")):
            raise ValueError(
                f"has the labels {text!r}, which are not a list; write them as a,b or"
                " as a JSON list"
            )
        found = text.split(",")
    names = [name for name in map(name_of, found) if name]
    if set(names) <= {"0", "1"} and len(set(names)) < len(names):
        raise ValueError(
            f"has the labels {value!r}, which seem to be a 0 or 1 for each class; list"
            " the names or the numbers of its classes"
        )
    return names


def classes(table: Table, column: str, names: Sequence[str], key: str) -> np.ndarray:
    """Returns int32[N], the class of each name or number; -1 if it is not labelled.

    The key has the names.
    """
    find = _class_finder(names, key)

    def number(value: Any) -> int:
        name = name_of(value)
        return -1 if is_unlabelled(name, names) else find(name)

    return np.array(table.convert(column, LABEL, number), np.int32)


def class_sets(table: Table, column: str, names: Sequence[str], key: str) -> np.ndarray:
    """Returns float32[N, C], 1 for the classes of a list or comma-separated text."""
    find = _class_finder(names, key)
    found = table.convert(column, LABEL, lambda value: [*map(find, parts(value))])
    texts = map(tuple, table.convert(column, LABEL, parts))
    if {*texts} == {("0", "1"), ("1", "0")}:
        raise ConfigError(
            f"{table.spec} has two labels in each row of {column!r}, in both orders,"
            " which seem to be a 0 or 1 for each class; list the names or the numbers"
            " of its classes"
        )
    sets_NC = np.zeros((len(found), len(names)), np.float32)
    for i, numbers in enumerate(found):
        sets_NC[i, numbers] = 1.0
    return sets_NC


def _class_finder(names: Sequence[str], key: str) -> Callable[[str], int]:
    """Returns a function that maps a label to the number of its class."""
    numbers, or_numbers = {name: i for i, name in enumerate(names)}, ""
    # If any name is a number, numbers in the data are names rather than indices.
    if names and not any(map(_is_number, names)):
        numbers = {str(i): i for i in range(len(names))} | numbers
        or_numbers = f", or 0 to {len(names) - 1}"

    def find(label: str) -> int:
        if label in numbers:
            return numbers[label]
        close = difflib.get_close_matches(label, names, n=1)
        hint = f"; the nearest is {close[0]!r}" if close else ""
        raise ValueError(
            f"has the label {label!r}, which is not in {key}"
            f" ({', '.join(names)}{or_numbers}){hint}; correct it, or extend {key}"
        )

    return find


def score(value: Any, key: str) -> float:
    """Returns a finite number of a column that a config key names."""
    number = float(value) if _is_number(value) else math.inf
    if abs(number) > float(np.finfo(np.float32).max):
        raise ValueError(
            f"has {value!r} in the column of {key}; it must be a finite number"
        )
    return number


def scores(table: Table, column: str, key: str) -> np.ndarray:
    """Returns the finite numbers of a column that a config key names, as float32[N]."""
    found = table.convert(column, key, lambda value: score(value, key))
    return np.array(found, np.float32)


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def as_list(value: Any) -> list[Any] | None:
    """Returns a list, or one that was written as text as in a csv; None for the others.

    The text is JSON or Python, such as "['a', 'b']".
    """
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or not value.strip().startswith("["):
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        try:
            found = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        # Python joins the items of "['a' 'b']", as numpy writes a list.
        if repr(found).replace(" ", "") != value.replace(" ", "").strip():
            return None
    return found if isinstance(found, list) else None
