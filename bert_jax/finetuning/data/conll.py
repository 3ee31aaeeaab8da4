"""Reads sentences of tagged words from tables or from CoNLL column files.

A conll:PATH file has one word per line and a blank line after each sentence. Columns
are separated by tabs or spaces. The first column is the word and the last is the tag,
unless config.task.words and config.task.tags are the numbers of other columns. Tags may
be IOB1, BIO (IOB2), BIOES or BILOU; they are interpreted as conlleval does, and
converted to BIO.

Source: Tjong Kim Sang and De Meulder 2003, and its conlleval.
"""

import collections
import dataclasses
import itertools
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.sources import lines
from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import tables
from bert_jax.finetuning.data.examples import Examples, write_lines
from bert_jax.finetuning.data.tables import MAX_LINE_BYTES, Table

DOCUMENT = "-DOCSTART-"
_TAG = re.compile(r"O|[BIESLU]-.+")
_BEGINS, _ENDS = "BSU", "ESLU"


@dataclasses.dataclass(frozen=True)
class Sentences(Examples):
    """Sentences of words with BIO tags."""

    spec: str  # for error messages
    words: list[list[str]]
    # BIO tags of each sentence's words; None for a test set
    tags: list[list[str]] | None
    # sentences of a table that were skipped because they have no word
    num_empty: int = 0

    @property
    def is_labelled(self) -> bool:
        return self.tags is not None

    def write(self, directory: Path, predicted: Any, names: Sequence[str]) -> None:
        """Writes words, tags if known, and predicted tags for conlleval."""
        lines = []
        for i, words in enumerate(self.words):
            columns = [words, predicted[i]]
            if self.tags is not None:
                columns.insert(1, self.tags[i])
            lines += [" ".join(row) + "\n" for row in zip(*columns, strict=True)]
            lines.append("\n")
        write_lines(directory / "predictions.conll", lines)

    def class_counts(self, names: Sequence[str]) -> list[tuple[str, int]]:
        begins = [tag[2:] for tags in self.tags or [] for tag in tags if tag[0] == "B"]
        return sorted(collections.Counter(begins).items())

    def class_pairs(self, predicted, names):
        sides = (self.tags or (), predicted)
        labelled, found = ([tag for tags in side for tag in tags] for side in sides)
        return labelled, found

    def classes(self, names: Sequence[str], key: str) -> list[np.ndarray] | None:
        """Returns each sentence's tags as int32 class numbers; None without tags."""
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


def read(spec: str, words: str, tags: str, *, has_tags: bool) -> Sentences:
    """Reads conll:PATH or a table with list-valued columns.

    Args:
      words, tags: names of the columns of a table. For conll:PATH the numbers of the
        columns, from 1; other text selects the first and the last.
      has_tags: False for a test set. Tags of a table are not read then, and a
        conll:PATH may have no column of tags.
    """
    kind, _, path = spec.partition(":")
    if kind == "conll":
        return _read_file(path, words, tags, has_tags)
    return _read_table(spec, words, tags if has_tags else "")


def _read_file(path: str, words: str, tags: str, has_tags: bool) -> Sentences:
    sentences = _sentences(path)
    if not sentences:
        raise ConfigError(f"{path} has no sentences")
    num_columns = len(sentences[0][0][1])
    word = _column(words, 1, num_columns, f"config.task.words={words} in {path}")
    if not words.isdigit() and num_columns > 1 and _counts_words(sentences):
        raise ConfigError(
            f"{path} counts the words of each sentence in its first column; set"
            " config.task.words to the number of the column of words, as in"
            " --config.task.words=2"
        )
    found = [[columns[word] for _, columns in sentence] for sentence in sentences]
    if not has_tags and tags.isdigit() and int(tags) > num_columns:
        return Sentences(path, found, None)
    tag = _column(tags, num_columns, num_columns, f"config.task.tags={tags} in {path}")
    if tag == word:
        return Sentences(path, found, None)
    for number, columns in itertools.chain(*sentences):
        _check_tag(columns[tag], f"{path}:{number}")
    all_tags = [to_bio([x[tag] for _, x in sentence]) for sentence in sentences]
    return Sentences(path, found, all_tags)


def _read_table(spec: str, words: str, tags: str) -> Sentences:
    table = tables.read(spec)
    found = _lists(table, words, "config.task.words")
    has_words = [bool(sentence) for sentence in found]
    sentences = list(itertools.compress(found, has_words))
    if not sentences:
        raise ConfigError(f"{spec} has no sentences")
    num_empty = len(found) - len(sentences)
    if not tags:
        return Sentences(spec, sentences, None, num_empty)
    kept = list(itertools.compress(_lists(table, tags, "config.task.tags"), has_words))
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


def _lists(table: Table, column: str, key: str) -> list[list[str]]:
    found = []
    for value in table.column(column, key):
        items = tables.as_list(value)
        if items is None or any(isinstance(x, list | dict | None) for x in items):
            raise ConfigError(
                f"{table.spec}, {column!r}: {value!r} is not a list; give each sentence"
                " as a list of strings"
            )
        found.append([str(item) for item in items])
    return found


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


def _sentences(path: str) -> list[list[tuple[int, list[str]]]]:
    """Returns the line number and the columns of each word of each sentence."""
    rows = list(_rows(path))
    num_columns = statistics.mode(
        [len(columns) for _, columns in rows if columns] or [0]
    )
    sentences: list[list[tuple[int, list[str]]]] = [[]]
    for number, columns in rows:
        if not columns:
            sentences.append([])
        elif len(columns) == num_columns:
            sentences[-1].append((number, columns))
        elif sentences[-1] or columns[0] != "#":  # else a comment before a sentence
            raise ConfigError(
                f"{path}:{number} has {len(columns)} columns, but most lines have"
                f" {num_columns}; give every line the same number"
            )
    return [sentence for sentence in sentences if sentence]


def _rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the columns of each line; a blank line has none."""
    for number, line in lines.read(path, MAX_LINE_BYTES, None, collections.Counter()):
        # Strip spaces and tabs only, because a word may contain a no-break space.
        stripped = line.strip(" \t")
        columns = re.split("\t" if "\t" in stripped else " +", stripped)
        if columns[0] != DOCUMENT:
            yield number, columns if stripped else []


def _column(given: str, default: int, num_columns: int, where: str) -> int:
    """Returns the index of a column given by its number from 1."""
    number = int(given) if given.isdigit() else default
    if not 1 <= number <= num_columns:
        raise ConfigError(f"{where}: it has {num_columns} columns, counted from 1")
    return number - 1


def _counts_words(sentences: list[list[tuple[int, list[str]]]]) -> bool:
    """Returns whether the first column counts from 0 or 1 in every sentence."""
    return any(
        all(
            columns[0] == str(i)
            for sentence in sentences
            for i, (_, columns) in enumerate(sentence, start)
        )
        for start in (0, 1)
    )


def _check_tag(tag: str, where: str) -> None:
    if not _TAG.fullmatch(tag):
        raise ConfigError(
            f"{where} has the invalid tag {tag!r}; a tag is O, or one of B-, I-, E-,"
            " S-, L-, U- and a type, as in B-person"
        )
