"""Reads questions about paragraphs in the JSON format of SQuAD 1.1 and 2.0."""

import collections
import dataclasses
import json
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from bert_jax.data.sources import lines
from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import tables
from bert_jax.finetuning.data.examples import Examples, write_lines
from bert_jax.finetuning.data.tables import MAX_LINE_BYTES

# Maximum distance in characters between an answer's stated offset and its text. Offsets
# that count bytes or UTF-16 units, or refer to unstripped text, are off by less.
MAX_SHIFT = 100


@dataclasses.dataclass(frozen=True)
class Answer:
    text: str  # as in the paragraph if it is found there
    start: int | None  # offset in the paragraph, in characters; None: not found


@dataclasses.dataclass(frozen=True)
class Question:
    id: str
    text: str
    paragraph: int  # index in `Questions.paragraphs`
    answers: tuple[Answer, ...]  # () if there is no answer, or in a test set
    is_impossible: bool


@dataclasses.dataclass(frozen=True)
class Questions(Examples):
    """The paragraphs and questions of a file."""

    paragraphs: list[str]  # distinct paragraph texts
    questions: list[Question]
    has_impossible: bool  # whether questions may have no answer, as in SQuAD 2.0
    num_mended: int  # answers whose offset was wrong and was corrected to nearby text
    # answers whose text was not found near their offset; not used in training. White
    # space and normal forms of Unicode may differ.
    num_lost: int

    @property
    def is_labelled(self) -> bool:
        return any(q.answers or q.is_impossible for q in self.questions)

    def write(self, directory: Path, predicted: Any, names: Sequence[str]) -> None:
        """Writes predictions.json, nbest_predictions.json and null_odds.json."""
        for name, values in (
            ("predictions.json", predicted.texts),
            ("nbest_predictions.json", predicted.best),
            ("null_odds.json", predicted.null_odds),
        ):
            write_lines(directory / name, [json.dumps(values, indent=2) + "\n"])

    def references(self) -> bytes:
        return repr(self.questions).encode()

    def as_test_set(self, train: "Questions") -> Self:
        # A test set hides whether questions may have no answer.
        return dataclasses.replace(self, has_impossible=train.has_impossible)

    def size(self, num_rows: int) -> str:
        return f"{len(self.questions):,} questions in {num_rows:,} rows"

    def why_empty(self) -> str:
        return (
            f"none of its {len(self.questions)} questions has an answer that is in its"
            " paragraph near answer_start: correct the answers"
        )


def read(spec: str) -> Questions:
    """Reads squad:PATH, or a table with the columns of SQuAD.

    A question without is_impossible has no answer if it lists none but others do.
    """
    kind, _, path = spec.partition(":")
    paragraphs: dict[str, int] = {}
    counts: collections.Counter[str] = collections.Counter()
    try:
        entries = _entries(_json(path)) if kind == "squad" else _table_entries(spec)
        found = [(context, entry, _answers(entry)) for context, entry in entries]
        is_labelled = any(answers for _, _, answers in found)
        questions: list[Question] = []
        for context, entry, answers in found:
            if not isinstance(context, str):
                raise TypeError(f"context is {context!r}")
            is_impossible = _is_impossible(entry, spec)
            if is_impossible is None:
                is_impossible = is_labelled and not answers
            # "plausible" answers of impossible questions in SQuAD 2.0 are not answers.
            given = () if is_impossible else answers
            questions.append(
                Question(
                    str(entry["id"]),
                    entry["question"].strip(),
                    paragraphs.setdefault(context, len(paragraphs)),
                    tuple(_locate(text, at, context, counts) for text, at in given),
                    is_impossible,
                )
            )
    except ConfigError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{spec} is not in SQuAD format ({type(error).__name__}: {error}); a file"
            " needs data, paragraphs and qas, a table id, question and context; both"
            " need answers with text and answer_start"
        ) from None
    if not questions:
        raise ConfigError(f"{spec} has no questions")
    return Questions(
        list(paragraphs),
        questions,
        any(question.is_impossible for question in questions),
        counts["mended"],
        counts["lost"],
    )


def check_ids(questions: Questions, spec: str) -> None:
    counts = collections.Counter(question.id for question in questions.questions)
    [(most, times)] = counts.most_common(1)
    if times > 1:
        raise ConfigError(
            f"{spec} has {times} questions with the id {most!r}; make ids unique"
        )


def _json(path: str) -> Any:
    numbered = lines.read(path, MAX_LINE_BYTES, None, collections.Counter())
    text = "\n".join(line for _, line in numbered)
    try:
        return tables.encodable(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None


def _entries(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a paragraph and an entry for each question; so does `_table_entries`."""
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                yield paragraph["context"], entry


def _table_entries(spec: str) -> Iterator[tuple[str, dict[str, Any]]]:
    table = tables.read(spec)
    names = ["id", "question", "context", "answers"]
    names += {"is_impossible"} & table.columns.keys()
    for row in zip(*map(table.column, names), strict=True):
        entry = dict(zip(names, row, strict=True))
        yield entry.pop("context"), entry


def _answers(entry: dict[str, Any]) -> list[tuple[str, int]]:
    """Returns the text and the offset of each answer; an empty text is no answer.

    They are a list of objects, or, as Hugging Face's datasets write them, an object of
    lists.
    """
    found = entry.get("answers") or []
    if isinstance(found, dict):
        pairs = list(zip(found["text"], found["answer_start"], strict=True))
    else:
        pairs = [(answer["text"], answer["answer_start"]) for answer in found]
    return [(text, start) for text, start in pairs if text.strip()]


def _is_impossible(entry: dict[str, Any], spec: str) -> bool | None:
    """Returns whether a question is marked as impossible; None without a mark."""
    value = entry.get("is_impossible")
    values = {"true": True, "false": False, "1": True, "0": False, "none": None}
    if str(value).lower() not in values:
        raise ConfigError(
            f"{spec}: question {entry.get('id')!r} has is_impossible={value!r}; it must"
            " be true or false"
        )
    return values[str(value).lower()]


def _locate(
    text: str, offset: int, paragraph: str, counts: collections.Counter[str]
) -> Answer:
    """Returns an answer at its offset, or else at the nearest place of its text."""
    offset += len(text) - len(text.lstrip())
    text = text.strip()
    if paragraph[offset : offset + len(text)] == text:
        return Answer(text, offset)
    first = max(0, offset - MAX_SHIFT)
    nearby, indices = _comparable(paragraph[first : offset + MAX_SHIFT + 2 * len(text)])
    wanted, _ = _comparable(text)
    spans = [
        (first + indices[i], first + indices[i + len(wanted) - 1] + 1)
        for i in range(len(nearby))
        if nearby.startswith(wanted, i)
        and not unicodedata.combining(f"{nearby} "[i + len(wanted)])
    ]
    if not spans:
        counts["lost"] += 1
        return Answer(text, None)
    start, end = min(spans, key=lambda span: abs(span[0] - offset))
    counts["mended"] += start != offset
    return Answer(paragraph[start:end], start)


def _comparable(text: str) -> tuple[str, list[int]]:
    """Returns a text with single spaces and decomposed characters (Unicode NFD).

    The second result is the index of each of its characters in the given text.
    """
    found: list[str] = []
    indices: list[int] = []
    for i, character in enumerate(text):
        character = " " if character.isspace() else character
        for part in unicodedata.normalize("NFD", character):
            if part != " " or found[-1:] != [" "]:
                found.append(part)
                indices.append(i)
    return "".join(found), indices
