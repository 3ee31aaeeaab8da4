"""Reads questions about paragraphs, and converts them to windows of token ids.

Files have the JSON format of SQuAD 1.1 and 2.0. A paragraph that is too long for a row
is split into overlapping windows. In windows that do not contain the answer, the answer
position is [CLS].

Source: google-research/bert run_squad.py, which locates answers by words; this module
locates them by characters.

Shapes: Q question, W window, B window of the batch, T token.
"""

import collections
import dataclasses
import json
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from bert_jax.data.batches import row_layout
from bert_jax.data.batches.row_layout import Rows
from bert_jax.data.tokenizers.base import Located
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.errors import ConfigError
from bert_jax.finetuning import tables
from bert_jax.finetuning.tables import Table
from bert_jax.finetuning.tasks import base
from bert_jax.finetuning.tasks.base import Examples, Features, Role

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
            base.write_lines(directory / name, [json.dumps(values, indent=2) + "\n"])

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


def read(spec: str, header: tuple[str, ...] = (), role: Role = "train") -> Questions:
    """Reads squad:PATH, or a table with the columns of SQuAD.

    A question without is_impossible has no answer if it lists none but others do.
    """
    kind, _, path = spec.partition(":")
    paragraphs: dict[str, int] = {}
    counts: collections.Counter[str] = collections.Counter()
    num_lost_lines = 0
    try:
        if kind == "squad":
            tables.check_header(spec, header)
            entries = _entries(path)
        else:
            table = base.read_table(spec, header, role)
            entries, num_lost_lines = _table_entries(table, role), len(table.dropped)
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
        num_lost_lines=num_lost_lines,
    )


def _entries(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a paragraph and an entry for each question; so does `_table_entries`."""
    text = "\n".join(line for _, line in tables.lines_of(path))
    try:
        content: Any = tables.encodable(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                yield paragraph["context"], entry


def _table_entries(table: Table, role: Role) -> Iterator[tuple[str, dict[str, Any]]]:
    names = ["id", "question", "context"]
    for name, is_needed in (("answers", role != "test"), ("is_impossible", False)):
        names += [name] * (is_needed or name in table.columns)
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


@dataclasses.dataclass(frozen=True)
class Windows:
    question_W: np.ndarray  # int64, index of the window's question
    first_W: np.ndarray  # int64, index of the window's first token in the paragraph
    length_W: np.ndarray  # int64, number of paragraph tokens in the window

    def max_context(self) -> list[np.ndarray]:
        """Returns for each window which tokens have maximum context in it, as bools.

        A token that is in several windows has maximum context in one of them: the one
        with the largest min(tokens to the left, tokens to the right) + 0.01 * length,
        and the first of these if several are equal.
        """
        sizes = self.length_W
        window = np.repeat(np.arange(len(sizes)), sizes)
        begins = np.cumsum(sizes) - sizes
        left = np.arange(sizes.sum()) - begins[window]
        right = sizes[window] - 1 - left
        score = np.minimum(left, right) + 0.01 * sizes[window]
        token = self.first_W[window] + left
        order = np.lexsort((window, -score, token, self.question_W[window]))
        question, token = self.question_W[window][order], token[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (question[1:] != question[:-1]) | (token[1:] != token[:-1])
        found = np.zeros(len(order), bool)
        found[order[is_first]] = True
        return np.split(found, begins[1:])


@dataclasses.dataclass(frozen=True)
class QuestionFeatures(Features):
    """Rows [CLS] question [SEP] window [SEP], one per window."""

    windows: Windows
    # int32, character offsets in the paragraph of each of the rows' ids
    starts: np.ndarray
    ends: np.ndarray
    # int32[W, 2], positions in the row of the answer's first and last token; None
    # outside training
    answers_W2: np.ndarray | None
    num_dropped: int  # questions that are not used, see `from_questions`

    def inputs(self, windows_B):
        """Adds int32[B] start_positions and end_positions in training.

        T is fixed then, because the loss includes padding positions among the classes
        (run_squad.py).
        """
        if self.answers_W2 is None:
            return super().inputs(windows_B)
        first_B, last_B = self.answers_W2[windows_B].T
        found = self.rows.arrays(self.rows.layout(windows_B))
        return found | {"start_positions": first_B, "end_positions": last_B}


def from_questions(
    questions: Questions,
    tokenizer: Tokenizer,
    *,
    length: int,
    stride: int,
    max_query_length: int,
    is_training: bool,
) -> QuestionFeatures:
    """Converts questions to windows, in the order of the questions.

    Args:
      stride: tokens between the starts of a paragraph's windows, at most
        `length` - 3 - `max_query_length`.
      is_training: whether to add answer positions and drop questions whose answer was
        not found in the paragraph.
    """
    locate = tokenizer.locator()
    paragraphs = [locate(text) for text in questions.paragraphs]
    kept = questions.questions
    spans = None
    if is_training:
        found = [(q, _answer_tokens(q, paragraphs[q.paragraph])) for q in kept]
        kept = [q for q, span in found if span is not None]
        spans = np.array([span for _, span in found if span is not None], np.int64)
    encoded = tokenizer.encoder()([q.text for q in kept])
    texts = [ids[:max_query_length] for ids in encoded]
    tokens = row_layout.join([*texts, *(p.ids for p in paragraphs)], tokenizer, length)
    Q = len(texts)
    paragraph_Q = np.array([q.paragraph for q in kept], np.int64)
    query_length_Q = tokens.lengths[:Q]
    windows = _cut(tokens.lengths[Q:][paragraph_Q], length - 3 - query_length_Q, stride)
    question_W = windows.question_W
    pairs_W4 = np.stack(
        [
            tokens.starts[:Q][question_W],
            query_length_Q[question_W],
            tokens.starts[Q:][paragraph_Q][question_W] + windows.first_W,
            windows.length_W,
        ],
        axis=1,
    )
    answers_W2 = None
    if spans is not None:
        answers_W2 = _positions(spans.reshape(-1, 2), windows, query_length_Q + 2)
    return QuestionFeatures(
        Rows(tokens.ids, pairs_W4, length),
        windows,
        row_layout.aligned([p.starts for p in paragraphs], tokens, 0),
        row_layout.aligned([p.ends for p in paragraphs], tokens, 0),
        answers_W2,
        len(questions.questions) - len(kept),
    )


def _answer_tokens(question: Question, paragraph: Located) -> tuple[int, int] | None:
    """Returns an answer's first and last token, -1 if there is none, None if lost."""
    if question.is_impossible:
        return -1, -1
    located = [(a.start, a.text) for a in question.answers if a.start is not None]
    if not located:
        return None
    start, text = located[0]
    first = int(np.searchsorted(paragraph.ends, start, side="right"))
    last = int(np.searchsorted(paragraph.starts, start + len(text), side="left")) - 1
    return (first, last) if first <= last else None


def _cut(lengths_Q: np.ndarray, room_Q: np.ndarray, stride: int) -> Windows:
    """Splits paragraphs into windows, which overlap if the stride is below the room."""
    more_Q = np.maximum(lengths_Q - room_Q, 0)
    num_windows_Q = 1 + -(-more_Q // stride)
    question_W = np.repeat(np.arange(len(lengths_Q)), num_windows_Q)
    before_Q = np.cumsum(num_windows_Q) - num_windows_Q
    number_W = np.arange(len(question_W)) - before_Q[question_W]
    first_W = number_W * stride
    length_W = np.minimum((lengths_Q[question_W] - first_W), room_Q[question_W])
    return Windows(question_W, first_W, length_W)


def _positions(
    spans_Q2: np.ndarray, windows: Windows, offset_Q: np.ndarray
) -> np.ndarray:
    """Returns int32[W, 2], the answer's ends in the row; 0 outside of the window."""
    spans_W2 = spans_Q2[windows.question_W] - windows.first_W[:, None]
    is_inside_W = (spans_W2[:, 0] >= 0) & (spans_W2[:, 1] < windows.length_W)
    # A span of -1 means "no answer", in every window.
    is_inside_W &= spans_Q2[windows.question_W, 0] >= 0
    positions_W2 = spans_W2 + offset_Q[windows.question_W][:, None]
    return np.where(is_inside_W[:, None], positions_W2, 0).astype(np.int32)
