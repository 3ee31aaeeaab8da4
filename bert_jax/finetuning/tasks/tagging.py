"""A tag of each word of a sentence.

A conll:PATH file has one word per line and a blank line after each sentence. Columns
are separated by tabs or spaces. The first column is the word and the last is the tag,
unless config.task.words and config.task.tags are the numbers of other columns. Tags may
be IOB1, BIO (IOB2), BIOES or BILOU; they are interpreted as conlleval does, and
converted to BIO. The first token of each word carries the word's label; the loss
ignores the others.

Source: Tjong Kim Sang and De Meulder 2003, and its conlleval.

Shapes: N sentence, B sentence of the batch, T token, C class.
"""

import collections
import dataclasses
import itertools
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batches import row_layout
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.errors import ConfigError
from bert_jax.finetuning import metrics as metrics_lib
from bert_jax.finetuning import tables
from bert_jax.finetuning.tables import Table
from bert_jax.finetuning.tasks import base
from bert_jax.finetuning.tasks.base import Examples, Form, Role, Task
from bert_jax.finetuning.tasks.text import check_labels
from bert_jax.model import heads
from bert_jax.model.heads import HeadType

IGNORED = -100  # the label of tokens that the loss ignores, as in PyTorch
DOCUMENT = "-DOCSTART-"
_TAG = re.compile(r"O|[BIESLU]-.+")
_BEGINS, _ENDS = "BSU", "ESLU"


@dataclasses.dataclass(frozen=True)
class Sentences(Examples):
    spec: str  # for error messages
    words: list[list[str]]
    # BIO tags of each sentence's words; None for a test set
    tags: list[list[str]] | None
    num_empty: int = 0  # sentences of a table that were skipped, without words

    @property
    def is_labelled(self):
        return self.tags is not None

    def write(self, directory: Path, predicted: Any, names: Sequence[str]) -> None:
        """Writes words, tags if known, and predicted tags for conlleval.

        A space in a word or a tag would begin another column, and is written as _.
        """
        lines = []
        for i, words in enumerate(self.words):
            columns = [words, predicted[i]]
            if self.tags is not None:
                columns.insert(1, self.tags[i])
            for row in zip(*columns, strict=True):
                values = (re.sub(r"[ \t\r\n]+", "_", value) or "_" for value in row)
                lines.append(" ".join(values) + "\n")
            lines.append("\n")
        base.write_lines(directory / "predictions.conll", lines)

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
            for tag in tags:
                if tag not in numbers:
                    raise ConfigError(
                        f"{self.spec}, sentence {number}, has the tag {tag!r}, which is"
                        f" not in {key} ({', '.join(names)})"
                    )
        return [np.array([numbers[t] for t in tags], np.int32) for tags in self.tags]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    kind: Literal["tagging"]  # what to predict
    # list-valued column of a table; in a conll: file "2" is its second column, and any
    # other text its first
    words: str
    # list-valued column of a table; in a conll: file "3" is its third column, and any
    # other text its last
    tags: str
    labels: tuple[str, ...]  # BIO tags and O; (): take them from the training set

    head = HeadType(
        "tagging", heads.BertForTagging, "BertForTokenClassification", has_labels=True
    )
    metrics = ("f1", "precision", "recall")
    pipeline = "token-classification"
    form = Form(1, 1, "words separated by spaces", "Ann lives in Paris .")

    def check(self, length, config=None):
        if config:
            check_labels(self.labels, "config.task.labels")

    def read(self, spec, header, names, role):
        found = read(spec, self.words, self.tags, role, header)
        if role == "train":
            names = self.labels or tag_names(found.tags or [])
        return found, names

    def of_inputs(self, inputs, settings):
        return Sentences("inputs", [text.split() or [""] for (text,) in inputs], None)

    def featurize(self, examples, names, tokenizer, length, role):
        if role == "test":  # its tags may have types that are not in the training set
            examples = dataclasses.replace(examples, tags=None)
        return from_sentences(examples, names, tokenizer, length, self.labels_key)

    def loss(self, outputs, batch):
        """Returns the summed cross entropy in nats and the number of labelled tokens.

        The labels are int32[B, T], IGNORED for unlabelled tokens.
        """
        labels_BT = jnp.maximum(batch["labels"], 0)
        return super().loss(outputs, {"labels": labels_BT, "weights": _weights(batch)})

    def distances(self, logits, teacher, batch, temperature):
        return base.divergences(logits, teacher, temperature), _weights(batch)

    def predict(self, examples, features, logits, names) -> list[list[str]]:
        """Returns the tags of every sentence's words, as BIO if all names are tags."""
        classes_NT = logits.argmax(axis=-1)
        of_words = features.word_classes(classes_NT)
        tags = [[str(names[i]) for i in classes] for classes in of_words]
        # Classes that are not entity tags, such as parts of speech, stay as they are.
        is_bio = all(map(_TAG.fullmatch, names))
        return [to_bio(sentence) for sentence in tags] if is_bio else tags

    def evaluate(self, examples, predicted, names):
        return metrics_lib.tagging(predicted, examples.tags)

    def results(self, examples, predicted, logits, names):
        return [
            {"words": words, "tags": tags}
            if words != [""]
            else {"words": [], "tags": []}
            for words, tags in zip(examples.words, predicted, strict=True)
        ]


def _weights(batch: base.Batch) -> jax.Array:
    """Returns float32[B, T], the row's weight for labelled tokens and 0 for others."""
    has_label_BT = (batch["labels"] != IGNORED).astype(jnp.float32)
    return has_label_BT * batch["weights"][:, None]


@dataclasses.dataclass(frozen=True)
class TaggingFeatures(base.Features):
    """Rows [CLS] sentence [SEP], one per sentence."""

    # int32, label of each of the rows' ids, IGNORED except at the first token of a
    # word; None for a test set
    labels: np.ndarray | None
    # int32, for each of the rows' ids the index in its sentence of the word that begins
    # there, or -1. A word of which the tokenizer drops every character begins nowhere.
    words: np.ndarray
    num_words_N: np.ndarray  # int64
    num_cut: int  # words that were truncated because their row is full
    # class predicted for words that begin nowhere and for truncated ones: O, or 0 if
    # there is no O
    class_of_cut: int

    def inputs(self, sentences_B):
        rows = self.rows.cut(sentences_B)
        layout = rows.layout(sentences_B)
        found = rows.arrays(layout)
        if self.labels is not None:
            found["labels"] = self.labels[layout.source_BT]
        return found

    def word_classes(self, classes_NT: np.ndarray) -> list[np.ndarray]:
        """Returns the classes of each sentence's words, given those of its tokens."""
        rows = dataclasses.replace(self.rows, length=classes_NT.shape[1])
        words_NT = self.words[rows.layout(np.arange(len(rows))).source_BT]
        found = [np.full(n, self.class_of_cut, np.int32) for n in self.num_words_N]
        for classes, words_T, classes_T in zip(
            found, words_NT, classes_NT, strict=True
        ):
            classes[words_T[words_T >= 0]] = classes_T[words_T >= 0]
        return found


def from_sentences(
    sentences: Sentences,
    names: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    key: str,
) -> TaggingFeatures:
    """Converts sentences to rows of up to `length` tokens; `key` defines the names."""
    num_words_N = np.array([len(words) for words in sentences.words], np.int64)
    flat = [word for words in sentences.words for word in words]
    pieces = tokenizer.encoder()(flat)
    num_pieces = np.array([len(ids) for ids in pieces], np.int64)
    last_word_N = np.cumsum(num_words_N)
    num_tokens_N = np.diff(np.cumsum(num_pieces)[last_word_N - 1], prepend=0)
    texts = np.split(np.concatenate(pieces), np.cumsum(num_tokens_N)[:-1])
    tokens = row_layout.join(texts, tokenizer, length)

    begins = np.cumsum(num_pieces) - num_pieces  # index of each word's first token
    has_token = num_pieces > 0
    first_word_N = last_word_N - num_words_N
    number = np.arange(len(flat)) - np.repeat(first_word_N, num_words_N)
    word = np.full(num_pieces.sum(), -1, np.int32)
    word[begins[has_token]] = number[has_token]
    labels = None
    if (classes := sentences.classes(names, key)) is not None:
        label = np.full(num_pieces.sum(), IGNORED, np.int32)
        label[begins[has_token]] = np.concatenate(classes)[has_token]
        labels = row_layout.aligned([label], tokens, IGNORED)

    rows, _ = row_layout.of_pairs(tokens, np.arange(len(num_words_N)), -1, length)
    positions = begins - np.repeat(begins[first_word_N], num_words_N)
    return TaggingFeatures(
        rows,
        labels,
        row_layout.aligned([word], tokens, -1),
        num_words_N,
        int((has_token & (positions >= length - 2)).sum()),
        names.index("O") if "O" in names else 0,
    )


def read(
    spec: str, words: str, tags: str, role: Role, header: tuple[str, ...] = ()
) -> Sentences:
    """Reads conll:PATH or a table; `words` and `tags` are the keys of `Tagging`.

    A test set has no tags: those of a table are not read, and a conll:PATH may have no
    column of them.
    """
    kind, _, path = spec.partition(":")
    if kind == "conll":
        tables.check_header(spec, header)
        return _read_file(path, words, tags, role != "test")
    table = base.read_table(spec, header, role)
    found = _of_table(table, words, tags if role != "test" else "")
    return dataclasses.replace(found, num_lost_lines=len(table.dropped))


def _read_file(path: str, words: str, tags: str, has_tags: bool) -> Sentences:
    sentences = _sentences(path)
    if not sentences:
        raise ConfigError(f"{path} has no sentences")
    num_columns = len(sentences[0][0][1])

    def index(key: str, given: str, default: int) -> int:
        number = int(given) if given.isdigit() else default
        if not 1 <= number <= num_columns:
            raise ConfigError(
                f"config.task.{key}={given} in {path}: it has {num_columns} columns,"
                " counted from 1"
            )
        return number - 1

    word = index("words", words, 1)
    if num_columns > 1 and not words.isdigit() and _counts_words(sentences):
        raise ConfigError(
            f"{path} counts the words of each sentence in its first column; set"
            " config.task.words to the number of the column of words, as in"
            " --config.task.words=2"
        )
    found = [[columns[word] for _, columns in sentence] for sentence in sentences]
    if not has_tags and tags.isdigit() and int(tags) > num_columns:
        return Sentences(path, found, None)
    tag = index("tags", tags, num_columns)
    if tag == word:
        return Sentences(path, found, None)
    for number, columns in itertools.chain(*sentences):
        _check_tag(columns[tag], f"{path}:{number}")
    all_tags = [to_bio([x[tag] for _, x in sentence]) for sentence in sentences]
    return Sentences(path, found, all_tags)


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


def _sentences(path: str) -> list[list[tuple[int, list[str]]]]:
    """Returns the line number and the columns of each word of each sentence."""
    # Line number, columns, and whether they are separated by tabs. A blank line has one
    # empty column.
    rows: list[tuple[int, list[str], bool]] = []
    for number, line in tables.lines_of(path):
        # Strip spaces and tabs only, because a word may contain a no-break space.
        stripped = line.strip(" \t")
        has_tab = "\t" in stripped
        columns = re.split("\t" if has_tab else " +", stripped)
        if columns[0] != DOCUMENT:
            rows.append((number, columns, has_tab))
    forms = [(len(x), has_tab) for _, x, has_tab in rows if x != [""]]
    num_columns, has_tabs = statistics.mode(forms or [(0, False)])
    sentences: list[list[tuple[int, list[str]]]] = [[]]
    for number, columns, has_tab in rows:
        # A comment before a sentence, "# text = A b", may have as many columns by
        # chance.
        may_be_comment = columns[0] == "#" and not sentences[-1]
        if columns == [""]:
            sentences.append([])
        elif may_be_comment and (len(columns), has_tab) != (num_columns, has_tabs):
            continue
        elif len(columns) == num_columns:
            sentences[-1].append((number, columns))
        else:
            raise ConfigError(
                f"{path}:{number} has {len(columns)} columns, but most lines have"
                f" {num_columns}; give every line the same number"
            )
    return [sentence for sentence in sentences if sentence]


def _of_table(table: Table, words: str, tags: str) -> Sentences:
    spec = table.spec
    found = _lists(table, words, "config.task.words")
    tags_found = _lists(table, tags, "config.task.tags") if tags else found
    kept = [pair for pair in zip(found, tags_found, strict=True) if pair[0]]
    if not kept:
        raise ConfigError(f"{spec} has no sentences")
    sentences, num_empty = [words for words, _ in kept], len(found) - len(kept)
    if not tags:
        return Sentences(spec, sentences, None, num_empty)
    for i, (sentence, row) in enumerate(kept, start=1):
        where = f"{spec}, sentence {i},"
        if len(sentence) != len(row):
            raise ConfigError(
                f"{where} has {len(sentence)} words but {len(row)} tags; give one tag"
                " per word"
            )
        for tag in row:
            _check_tag(tag, where)
    bio = [to_bio(row) for _, row in kept]
    return Sentences(spec, sentences, bio, num_empty)


def _lists(table: Table, column: str, key: str) -> list[list[str]]:
    def strings(value: Any) -> list[str]:
        items = tables.as_list(value)
        if items is None or any(isinstance(x, list | dict | None) for x in items):
            raise ValueError(
                f"has {value!r} in {column!r}, which is not a list; give each sentence"
                " as a list of strings"
            )
        return [str(item) for item in items]

    return table.convert(column, key, strings)


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


def _check_tag(tag: str, where: str) -> None:
    if not _TAG.fullmatch(tag):
        raise ConfigError(
            f"{where} has the invalid tag {tag!r}; a tag is O, or one of B-, I-, E-,"
            " S-, L-, U- and a type, as in B-person"
        )
