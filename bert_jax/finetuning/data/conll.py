"""Reads sentences of tagged words from tables or from CoNLL column files.

A conll:PATH file has one word per line and a blank line after each sentence. The first
column is the word and the last is the tag; columns are separated by tabs or spaces.
Tags may be IOB1, BIO (IOB2), BIOES or BILOU; they are interpreted as conlleval does,
and converted to BIO.

Source: Tjong Kim Sang and De Meulder 2003, and its conlleval.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.data.sources import lines
from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import tables
from bert_jax.finetuning.data.tables import MAX_LINE_BYTES

DOCUMENT = "-DOCSTART-"
_TAG = re.compile(r"O|[BIESLU]-.+")
_BEGINS, _ENDS = "BSU", "ESLU"


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences of words with BIO tags.

    Attributes:
      spec: the spec of the data, for error messages.
      words: words of each sentence.
      tags: BIO tags of each sentence's words; None for a test set.
      num_empty: sentences of a table that were skipped because they have no word.
    """

    spec: str
    words: list[list[str]]
    tags: list[list[str]] | None
    num_empty: int = 0

    def classes(self, names: Sequence[str], key: str) -> list[np.ndarray] | None:
        """Returns each sentence's tags as int32 class numbers; None without tags.

        Args:
          names: class names.
          key: the config key that defines the names, for the error message.

        Raises:
          ConfigError: if a tag is not among the names.
        """
        if self.tags is None:
            return None
        numbers = {name: i for i, name in enumerate(names)}
        for number, tags in enumerate(self.tags, start=1):
            if unknown := [tag for tag in tags if tag not in numbers]:
                raise ConfigError(
                    f"{self.spec}, sentence {number}, has the tag {unknown[0]!r}, which"
                    f" is not in {key} ({', '.join(names)})"
                )
        return [np.array([numbers[t] for t in tags], np.int32) for tags in self.tags]


def are_tags(names: Iterable[str]) -> bool:
    """Returns whether all names are tags of one of the supported schemes."""
    return all(_TAG.fullmatch(name) for name in names)


def read(spec: str, words: str, tags: str) -> Sentences:
    """Reads conll:PATH or a table with list-valued columns.

    Args:
      spec: conll:PATH, or the spec of a table as in tables.py.
      words, tags: column names of a table, ignored for conll:PATH; tags="" reads no
        tags.

    Raises:
      ConfigError: if the data cannot be read, has no sentences, has lines with
        different numbers of columns, or has invalid tags.
    """
    kind, _, path = spec.partition(":")
    return _read_file(path) if kind == "conll" else _read_table(spec, words, tags)


def _read_file(path: str) -> Sentences:
    sentences = list(_sentences(path))
    if not sentences:
        raise ConfigError(f"{path} has no sentences")
    words = [[columns[0] for columns in sentence] for sentence in sentences]
    if len(sentences[0][0]) == 1:
        return Sentences(path, words, None)
    tags = [to_bio([columns[-1] for columns in sentence]) for sentence in sentences]
    return Sentences(path, words, tags)


def _read_table(spec: str, words: str, tags: str) -> Sentences:
    table = tables.read(spec)
    found = [
        _list(value, f"{spec}, {words!r}")
        for value in table.column(words, "config.task.words")
    ]
    has_words = [bool(sentence) for sentence in found]
    sentences = list(itertools.compress(found, has_words))
    if not sentences:
        raise ConfigError(f"{spec} has no sentences")
    num_empty = len(found) - len(sentences)
    if not tags:
        return Sentences(spec, sentences, None, num_empty)
    lists = [
        _list(value, f"{spec}, {tags!r}")
        for value in table.column(tags, "config.task.tags")
    ]
    kept = list(itertools.compress(lists, has_words))
    for i, (sentence, row) in enumerate(zip(sentences, kept, strict=True), start=1):
        where = f"{spec}, sentence {i},"
        if len(sentence) != len(row):
            raise ConfigError(
                f"{where} has {len(sentence)} words but {len(row)} tags; give one tag"
                " per word"
            )
        for tag in row:
            _check_tag(tag, where)
    return Sentences(spec, sentences, [to_bio(row) for row in kept], num_empty)


def _list(value: Any, where: str) -> list[str]:
    if not isinstance(value, list):
        raise ConfigError(
            f"{where}: {value!r} is not a list; give each sentence as a list of strings"
        )
    return [str(item) for item in value]


def tag_names(tags: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Returns O, and the B- and I- tag of every entity type, in alphabetical order."""
    types = sorted({tag[2:] for sentence in tags for tag in sentence} - {""})
    return ("O", *(f"{prefix}-{type_}" for type_ in types for prefix in "BI"))


def to_bio(tags: Sequence[str]) -> list[str]:
    """Converts a sentence's tags to BIO.

    An entity begins at B, S and U, at a change of type, and after O, E, L, S and U.
    """
    found, before = [], "O"
    for tag in tags:
        begins = (
            tag[0] in _BEGINS
            or before == "O"
            or before[0] in _ENDS
            or before[1:] != tag[1:]
        )
        found.append(tag if tag == "O" else f"{'B' if begins else 'I'}{tag[1:]}")
        before = tag
    return found


def _sentences(path: str) -> Iterator[list[list[str]]]:
    counts: collections.Counter[str] = collections.Counter()
    sentence: list[list[str]] = []
    num_columns = 0
    for number, line in lines.read(path, MAX_LINE_BYTES, None, counts):
        # Strip spaces and tabs only, because a word may contain a no-break space.
        stripped = line.strip(" \t")
        if not stripped:
            if sentence:
                yield sentence
            sentence = []
            continue
        columns = re.split("\t" if "\t" in stripped else " +", stripped)
        if columns[0] == DOCUMENT:
            continue
        num_columns = num_columns or len(columns)
        _check(columns, num_columns, f"{path}:{number}")
        sentence.append(columns)
    if sentence:
        yield sentence


def _check(columns: list[str], num_columns: int, where: str) -> None:
    if len(columns) != num_columns:
        raise ConfigError(
            f"{where} has {len(columns)} columns, but the lines before it have"
            f" {num_columns}; give every line the same number"
        )
    if num_columns > 1:
        _check_tag(columns[-1], where)


def _check_tag(tag: str, where: str) -> None:
    if not _TAG.fullmatch(tag):
        raise ConfigError(
            f"{where} has the invalid tag {tag!r}; a tag is O, or one of B-, I-, E-,"
            " S-, L-, U- and a type, as in B-person"
        )
