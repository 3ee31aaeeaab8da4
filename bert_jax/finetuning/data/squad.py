"""Reads questions about paragraphs in the JSON format of SQuAD 1.1 and 2.0."""

import collections
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from bert_jax.data.sources import lines
from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import tables
from bert_jax.finetuning.data.tables import MAX_LINE_BYTES

# Maximum distance in characters between an answer's stated offset and its text. Offsets
# that count bytes or UTF-16 units, or refer to unstripped text, are off by less.
MAX_SHIFT = 100


@dataclasses.dataclass(frozen=True)
class Answer:
    text: str  # without leading and trailing white space
    start: int | None  # offset in the paragraph, in characters; None: not found


@dataclasses.dataclass(frozen=True)
class Question:
    id: str
    text: str
    paragraph: int  # index in `Questions.paragraphs`
    answers: tuple[Answer, ...]  # () if there is no answer, or in a test set
    is_impossible: bool


@dataclasses.dataclass(frozen=True)
class Questions:
    """The paragraphs and questions of a file.

    Attributes:
      paragraphs: distinct paragraph texts.
      questions: questions about the paragraphs.
      has_impossible: whether questions may have no answer, as in SQuAD 2.0.
      num_mended: answers whose offset was wrong and was corrected to nearby text.
      num_lost: answers whose text was not found near their offset; not used in
        training.
    """

    paragraphs: list[str]
    questions: list[Question]
    has_impossible: bool
    num_mended: int
    num_lost: int


def read(spec: str) -> Questions:
    """Reads squad:PATH, or a table with the columns of SQuAD.

    Raises:
      ConfigError: if the data cannot be read, has another format, or has no questions.
    """
    kind, _, path = spec.partition(":")
    paragraphs: dict[str, int] = {}
    questions: list[Question] = []
    counts: collections.Counter[str] = collections.Counter()
    try:
        entries = _entries(_json(path)) if kind == "squad" else _table_entries(spec)
        for context, entry in entries:
            if not isinstance(context, str):
                raise TypeError(f"context is {context!r}")
            number = paragraphs.setdefault(context, len(paragraphs))
            questions.append(_question(entry, context, number, counts))
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
    """Raises ConfigError if two questions share an id, the key of their answers."""
    counts = collections.Counter(question.id for question in questions.questions)
    [(most, times)] = counts.most_common(1)
    if times > 1:
        raise ConfigError(
            f"{spec} has {times} questions with the id {most!r}; make ids unique"
        )


def _json(path: str) -> Any:
    counts: collections.Counter[str] = collections.Counter()
    text = "\n".join(line for _, line in lines.read(path, MAX_LINE_BYTES, None, counts))
    try:
        return tables.replace_lone_surrogates(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None


def _entries(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (paragraph, entry) for each question of a SQuAD file."""
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                yield paragraph["context"], entry


def _table_entries(spec: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (paragraph, entry) for each row of a table."""
    table = tables.read(spec)
    columns = {key: table.column(key) for key in ("id", "question", "context")}
    answers = table.column("answers")
    has_answer = [bool(answer["text"]) for answer in answers]
    # SQuAD 2.0 as written by Hugging Face's datasets has no column is_impossible; a
    # question is impossible if it has no answers. A test set has no answers at all.
    inferred = [any(has_answer) and not answer for answer in has_answer]
    is_impossible = table.columns.get("is_impossible", inferred)
    for i, row in enumerate(zip(*columns.values(), strict=True)):
        entry = dict(zip(columns, row, strict=True))
        pairs = zip(answers[i]["text"], answers[i]["answer_start"], strict=True)
        entry["answers"] = [{"text": t, "answer_start": s} for t, s in pairs]
        entry["is_impossible"] = is_impossible[i]
        yield entry.pop("context"), entry


def _question(
    entry: dict[str, Any],
    paragraph: str,
    number: int,
    counts: collections.Counter[str],
) -> Question:
    is_impossible = bool(entry.get("is_impossible", False))
    # "plausible" answers of impossible questions in SQuAD 2.0 are not answers.
    answers = () if is_impossible else entry.get("answers", ())
    return Question(
        str(entry["id"]),
        entry["question"].strip(),
        number,
        tuple(
            Answer(
                a["text"].strip(),
                _start(a["text"], a["answer_start"], paragraph, counts),
            )
            for a in answers
        ),
        is_impossible,
    )


def _start(
    text: str, offset: int, paragraph: str, counts: collections.Counter[str]
) -> int | None:
    """Returns the start of an answer's text: its offset, or the nearest occurrence."""
    offset += len(text) - len(text.lstrip())
    text = text.strip()
    if text and paragraph[offset : offset + len(text)] == text:
        return offset
    first = max(0, offset - MAX_SHIFT)
    nearby = paragraph[first : offset + MAX_SHIFT + len(text)]
    starts = [
        first + i for i in range(len(nearby)) if text and nearby.startswith(text, i)
    ]
    if not starts:
        counts["lost"] += 1
        return None
    counts["mended"] += 1
    return min(starts, key=lambda start: abs(start - offset))
