"""Sentences of words with tags: from tables, or from columns as in CoNLL's files.

conll:PATH has a word a line and a blank line after each sentence. The word is the first
column and the tag the last, with tabs or spaces between. Tags may be IOB1, BIO (IOB2),
BIOES or BILOU; they are read as conlleval reads them, and become BIO.

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
      spec: what was read, for messages.
      words: of each sentence.
      tags: of each word; None for a test set.
      num_empty: of a table's, those without a word, which are left out.
    """

    spec: str
    words: list[list[str]]
    tags: list[list[str]] | None
    num_empty: int = 0

    def classes(self, names: Sequence[str], key: str) -> list[np.ndarray] | None:
        """Returns int32 numbers of each sentence's tags.

        Args:
          names: of the classes.
          key: the config key that the names are from, for the error message.

        Raises:
          ConfigError: for a tag that is none of the names.
        """
        if self.tags is None:
            return None
        numbers = {name: i for i, name in enumerate(names)}
        for number, tags in enumerate(self.tags, start=1):
            if unknown := [tag for tag in tags if tag not in numbers]:
                raise ConfigError(
                    f"{self.spec}, sentence {number}, has the tag {unknown[0]!r}; {key}"
                    f" has {', '.join(names)}"
                )
        return [np.array([numbers[t] for t in tags], np.int32) for tags in self.tags]


def are_tags(names: Iterable[str]) -> bool:
    """Returns whether all names are tags of one of the schemes above."""
    return all(_TAG.fullmatch(name) for name in names)


def read(spec: str, words: str, tags: str) -> Sentences:
    """Reads conll:PATH, or any table whose values are lists.

    Args:
      spec: see there and tables.py.
      words, tags: the columns of a table, which a file of columns has no names for; ""
        for no tags.

    Raises:
      ConfigError: when it cannot be read, has no sentences, a line is no word with as
        many columns as the first, or what should be a tag is none.
    """
    kind, _, path = spec.partition(":")
    return _read_file(path) if kind == "conll" else _of_table(spec, words, tags)


def _read_file(path: str) -> Sentences:
    sentences = list(_sentences(path))
    if not sentences:
        raise ConfigError(f"{path} has no sentences")
    words = [[columns[0] for columns in sentence] for sentence in sentences]
    if len(sentences[0][0]) == 1:
        return Sentences(path, words, None)
    tags = [to_bio([columns[-1] for columns in sentence]) for sentence in sentences]
    return Sentences(path, words, tags)


def _of_table(spec: str, words: str, tags: str) -> Sentences:
    table = tables.read(spec)
    found = [
        _list(value, f"{spec}, {words!r}")
        for value in table.column(words, "config.task.words")
    ]
    # Without a word there is nothing to tag.
    is_there = [bool(sentence) for sentence in found]
    sentences = list(itertools.compress(found, is_there))
    if not sentences:
        raise ConfigError(f"{spec} has no sentences")
    num_empty = len(found) - len(sentences)
    if not tags:
        return Sentences(spec, sentences, None, num_empty)
    lists = [
        _list(value, f"{spec}, {tags!r}")
        for value in table.column(tags, "config.task.tags")
    ]
    kept = list(itertools.compress(lists, is_there))
    for i, (sentence, its) in enumerate(zip(sentences, kept, strict=True), start=1):
        where = f"{spec}, sentence {i},"
        if len(sentence) != len(its):
            raise ConfigError(f"{where} has {len(sentence)} words, {len(its)} tags")
        for tag in its:
            _check_tag(tag, where)
    return Sentences(spec, sentences, [to_bio(its) for its in kept], num_empty)


def _list(value: Any, where: str) -> list[str]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: {value!r} is no list; sentences are lists here")
    return [str(item) for item in value]


def tag_names(tags: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Returns O, and B- and I- of every type that there is, in its order."""
    types = sorted({tag[2:] for sentence in tags for tag in sentence} - {""})
    return ("O", *(f"{prefix}-{type_}" for type_ in types for prefix in "BI"))


def to_bio(tags: Sequence[str]) -> list[str]:
    """Returns a sentence's tags with B- where an entity begins and I- where it goes on.

    An entity begins at B, S and U, at any other type than before, and after O, E, L, S
    and U.
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
        # Not all white space: a word may have a no-break space in it.
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
            f"{where} has {len(columns)} columns, the lines before have {num_columns}"
        )
    if num_columns > 1:
        _check_tag(columns[-1], where)


def _check_tag(tag: str, where: str) -> None:
    if not _TAG.fullmatch(tag):
        raise ConfigError(
            f"{where} has the tag {tag!r}; tags are O, or B-, I-, E-, S- and a"
            " type, as in B-person"
        )
