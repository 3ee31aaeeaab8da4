"""Files with named columns, as people have them, and TensorFlow Datasets: rows of them.

tsv:PATH      tabs between columns and no quoting at all, as GLUE's
csv:PATH      commas, and quotes around what has commas, quotes or line ends in it
jsonl:PATH    an object a line; its keys are the columns
tfds:NAME:SPLIT   a dataset of TensorFlow Datasets, classes under their names; SPLIT
              may be a part of one, as train[:10%]

The first line names the columns, unless the caller does. A byte order mark is dropped;
files may be gzip or bzip2. Text must be UTF-8.
"""

import collections
import csv
import dataclasses
import difflib
import json
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.data.sources import lines
from bert_jax.data.sources import tfds as tfds_lib
from bert_jax.errors import ConfigError

# A few lines of GLUE's files are broken; more than this share is another format.
MAX_DROPPED = 0.01
MAX_NAME_WORDS = 4  # of a column; a first line with more is probably a text
MAX_LINE_BYTES = 2**30  # no line of a labelled set is ever cut
csv.field_size_limit(2**30)  # of a whole process; 131,072 otherwise


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns of equal length, by name.

    Attributes:
      spec: what was read, for messages.
      columns: strings; of JSON lines whatever the values are.
      num_dropped: lines whose number of columns is not that of the names.
      first_dropped: the number of the first of these lines.
      has_header: whether its first line was taken for the names.
    """

    spec: str
    columns: dict[str, list[Any]]
    num_dropped: int = 0
    first_dropped: int = 0
    has_header: bool = False

    def column(self, name: str, key: str = "") -> list[Any]:
        """Returns the values of a column.

        Args:
          name: of the column.
          key: the config key that names it, for the error message; "" where the format
            itself prescribes the name.

        Raises:
          ConfigError: if there is no column of this name.
        """
        if name in self.columns:
            return self.columns[name]
        close = difflib.get_close_matches(name, self.columns, n=1)
        hint = f"; the nearest is {close[0]!r}" if close else ""
        if self.has_header and any(map(_is_data, self.columns)):
            hint += (
                "; if its first line is data, name the columns in config.data.header"
            )
        columns = ", ".join(self.columns) or "none"
        if key:
            raise ConfigError(
                f"{key} names the column {name!r}, but {self.spec} has {columns}{hint}"
            )
        raise ConfigError(f"{self.spec} has no column {name!r}; it has {columns}{hint}")


def _is_data(name: str) -> bool:
    """Returns whether a name in a header looks like a value of a column instead."""
    try:
        float(name)
    except ValueError:
        return not name.strip() or len(name.split()) > MAX_NAME_WORDS
    return True


def read(spec: str, header: tuple[str, ...] = ()) -> Table:
    """Reads a whole table.

    Args:
      spec: see above.
      header: the columns' names, for a tsv or csv without a line of them.

    Raises:
      ConfigError: when it cannot be read, is of another format, or has no rows.
    """
    kind, separator, argument = spec.partition(":")
    if not separator or kind not in _READERS:
        raise ConfigError(
            f"{spec!r} is no labelled data; begin with one of"
            f" {', '.join(f'{name}:' for name in _READERS)} as in tsv:train.tsv"
        )
    table = _READERS[kind](spec, argument, header)
    if not any(table.columns.values()):
        raise ConfigError(f"{spec} has no rows")
    return table


def _tsv(spec: str, path: str, header: tuple[str, ...]) -> Table:
    rows = ((number, line.split("\t")) for number, line in _lines(path))
    return _of_rows(spec, path, rows, header)


def _csv(spec: str, path: str, header: tuple[str, ...]) -> Table:
    reader = csv.reader((line + "\n" for _, line in _lines(path)), strict=True)

    def rows() -> Iterator[tuple[int, list[str]]]:
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise ConfigError(f"{path}:{reader.line_num}: {error}") from None
            yield reader.line_num, row

    return _of_rows(spec, path, rows(), header)


def _lines(path: str) -> Iterator[tuple[int, str]]:
    counts: collections.Counter[str] = collections.Counter()
    return lines.read(path, MAX_LINE_BYTES, None, counts)


def _of_rows(
    spec: str, path: str, rows: Iterator[tuple[int, list[str]]], header: tuple[str, ...]
) -> Table:
    names = list(header) or next(rows, (0, []))[1]
    if len(set(names)) < len(names):
        raise ConfigError(f"{path} names a column twice: {', '.join(names)}")
    kept: list[list[str]] = []
    dropped: list[tuple[int, int]] = []
    for number, row in rows:
        if len(row) == len(names):
            kept.append(row)
        elif any(row):  # not a blank line
            dropped.append((number, len(row)))
    if len(dropped) > MAX_DROPPED * (len(kept) + len(dropped)):
        number, found = dropped[0]
        raise ConfigError(
            f"{path}:{number} has {found} columns, not the {len(names)} of"
            f" {', '.join(names)}; there are {len(dropped)} such lines"
        )
    columns = zip(*kept, strict=True) if kept else ([] for _ in names)
    table = {name: list(c) for name, c in zip(names, columns, strict=True)}
    first_dropped = dropped[0][0] if dropped else 0
    return Table(spec, table, len(dropped), first_dropped, has_header=not header)


def _jsonl(spec: str, path: str, header: tuple[str, ...]) -> Table:
    _refuse_header(spec, header)
    columns: dict[str, list[Any]] = {}
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = as_text(json.loads(line))
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ConfigError(f"{path}:{number} is not a JSON object")
        columns = columns or {key: [] for key in row}
        if row.keys() != columns.keys():
            raise ConfigError(
                f"{path}:{number} has the keys {', '.join(row)}, the first line has"
                f" {', '.join(columns)}"
            )
        for key, value in row.items():
            columns[key].append(value)
    return Table(spec, columns)


def as_text(value: Any) -> Any:
    """Returns what JSON held, with texts alone that can be written again."""
    if isinstance(value, str):
        return lines.whole_characters(value)
    if isinstance(value, list):
        return [as_text(item) for item in value]
    if isinstance(value, dict):
        return {as_text(key): as_text(item) for key, item in value.items()}
    return value


def _tfds(spec: str, argument: str, header: tuple[str, ...]) -> Table:
    _refuse_header(spec, header)
    name, split = tfds_lib.name_and_split(argument)
    if not split:
        raise ConfigError(f"{spec} names no split; write {spec}:train")
    builder = tfds_lib.builder(name, spec)
    dataset = tfds_lib.dataset(builder, split, spec)
    features = builder.info.features
    columns: dict[str, list[Any]] = {key: [] for key in features}
    for example in dataset.as_numpy_iterator():
        for key, values in columns.items():
            values.append(_as_python(example[key], features[key]))
    return Table(spec, columns)


def _as_python(value: Any, feature: Any) -> Any:
    """Returns text as a string, a class by its name, "" where a test set hides it."""
    if isinstance(value, dict):  # of one value each, or of as many as a sequence has
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


def _refuse_header(spec: str, header: tuple[str, ...]) -> None:
    if header:
        raise ConfigError(f"{spec} names its columns itself; leave out the header")


_READERS: dict[str, Callable[[str, str, tuple[str, ...]], Table]] = {
    "tsv": _tsv,
    "csv": _csv,
    "jsonl": _jsonl,
    "tfds": _tfds,
}
