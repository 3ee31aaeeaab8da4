"""Questions about paragraphs, in the JSON of SQuAD 1.1 and 2.0."""

import collections
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from bert_jax.data.sources import lines
from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import tables
from bert_jax.finetuning.data.tables import MAX_LINE_BYTES

# How far from its offset an answer's text may stand to be meant: offsets that count
# bytes or UTF-16 units, or an unstripped text, are off by less.
MAX_SHIFT = 100


@dataclasses.dataclass(frozen=True)
class Answer:
    text: str  # without white space around it
    start: int | None  # of its first character in the paragraph; None: not found there


@dataclasses.dataclass(frozen=True)
class Question:
    id: str
    text: str
    paragraph: int  # in `Questions.paragraphs`
    answers: tuple[Answer, ...]  # none where there is no answer, or a test set hides it
    is_impossible: bool


@dataclasses.dataclass(frozen=True)
class Questions:
    """What a file holds.

    Attributes:
      paragraphs: texts.
      questions: about them.
      has_impossible: whether questions may have no answer, as in SQuAD 2.0.
      num_mended: answers whose offset was wrong and whose text stands nearby.
      num_lost: answers whose text is not nearby; they are no good for training.
    """

    paragraphs: list[str]
    questions: list[Question]
    has_impossible: bool
    num_mended: int
    num_lost: int


def read(spec: str) -> Questions:
    """Reads squad:PATH, a file, or a table of TensorFlow Datasets with its columns.

    Raises:
      ConfigError: when it cannot be read, is none of this format, or has no questions.
    """
    kind, _, path = spec.partition(":")
    paragraphs: dict[str, int] = {}
    questions: list[Question] = []
    counts: collections.Counter[str] = collections.Counter()
    try:
        entries = _entries(_json(path)) if kind == "squad" else _of_table(spec)
        for context, entry in entries:
            if not isinstance(context, str):
                raise TypeError(f"context is {context!r}")
            number = paragraphs.setdefault(context, len(paragraphs))
            questions.append(_question(entry, context, number, counts))
    except ConfigError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{spec} is no SQuAD ({type(error).__name__}: {error}); it has data,"
            " paragraphs, qas, answers with text and answer_start"
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
    """Raises ConfigError where two questions have one id: answers are told by it."""
    counts = collections.Counter(question.id for question in questions.questions)
    [(most, times)] = counts.most_common(1)
    if times > 1:
        raise ConfigError(
            f"{spec} has {times} questions with the id {most!r}; give each its own"
        )


def _json(path: str) -> Any:
    counts: collections.Counter[str] = collections.Counter()
    text = "\n".join(line for _, line in lines.read(path, MAX_LINE_BYTES, None, counts))
    try:
        return tables.as_text(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None


def _entries(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each question's paragraph and what the file says of it."""
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                yield paragraph["context"], entry


def _of_table(spec: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the same of a table's rows."""
    table = tables.read(spec)
    columns = {key: table.column(key) for key in ("id", "question", "context")}
    answers = table.column("answers")
    has_answer = [bool(answer["text"]) for answer in answers]
    # SQuAD 2.0 as Hugging Face's datasets write it tells by the answers alone; a test
    # set has none at all.
    guessed = [any(has_answer) and not answer for answer in has_answer]
    is_impossible = table.columns.get("is_impossible", guessed)
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
    # SQuAD 2.0 has "plausible" answers of impossible questions apart; no answers here.
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
    text: str, said: int, paragraph: str, counts: collections.Counter[str]
) -> int | None:
    """Returns where an answer's text begins: as said, or nearby."""
    said += len(text) - len(text.lstrip())
    text = text.strip()
    if text and paragraph[said : said + len(text)] == text:
        return said
    first = max(0, said - MAX_SHIFT)
    nearby = paragraph[first : said + MAX_SHIFT + len(text)]
    places = [
        first + i for i in range(len(nearby)) if text and nearby.startswith(text, i)
    ]
    if not places:
        counts["lost"] += 1
        return None
    counts["mended"] += 1
    return min(places, key=lambda place: abs(place - said))
