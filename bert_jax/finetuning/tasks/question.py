"""The span of a paragraph that answers a question.

Answers are found as in google-research/bert run_squad.py, write_predictions. That
function pairs the best starts with the best ends; this module scores every span up to
the maximum length.

Shapes: B window of the batch, W window, T token position, P token of the paragraph in
a window, S span, A answer length, K best spans of a window.
"""

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from bert_jax.config.validation import Count, CountOrZero, require
from bert_jax.errors import ConfigError
from bert_jax.finetuning import metrics as metrics_lib
from bert_jax.finetuning.tasks import base, question_data
from bert_jax.finetuning.tasks.base import Form, Task
from bert_jax.finetuning.tasks.question_data import (
    Question,
    QuestionFeatures,
    Questions,
)
from bert_jax.model import heads
from bert_jax.model.heads import HeadType
from bert_jax.training.losses import weighted_cross_entropy

_WINDOWS_AT_ONCE = 256  # [W, T, A] float32: 12 MB at 384 tokens and answers of 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    kind: Literal["question_answering"]  # what to predict
    stride: CountOrZero  # tokens between the starts of windows; 0: see window_stride
    max_query_length: Count  # maximum tokens of a question
    max_answer_length: Count  # maximum tokens of an answer
    num_best: Count  # answers to keep for each question
    null_threshold: float  # null odds above this value mean "no answer"
    answer_units: Literal["words", "characters"]  # units of the F1 score

    head = HeadType(
        "question_answering", heads.BertForQuestionAnswering, "BertForQuestionAnswering"
    )
    metrics = ("f1", "exact_match")
    pipeline = "question-answering"
    # The defaults of the released run_squad.py.
    settings = {
        "stride": 0,
        "max_query_length": 64,
        "max_answer_length": 30,
        "null_threshold": 0.0,
        "has_impossible": False,
    }
    has_pairs = has_windows = True
    form = Form(
        2, 2, "question ||| paragraph", "Who wrote it? ||| Ann wrote it in May."
    )

    def room(self, length: int) -> int:
        """Returns how many tokens of a paragraph fit beside the longest question."""
        return length - 3 - self.max_query_length

    def window_stride(self, length: int) -> int:
        """Resolves the stride: 0 means half of the room, at most run_squad.py's 128."""
        return self.stride or max(1, min(128, self.room(length) // 2))

    def check(self, length, config=None):
        section, room = "config.task." if config else "", self.room(length)
        require(
            room > 0,
            f"{section}max_query_length",
            self.max_query_length,
            f"leaves no room for a paragraph in rows of {length} tokens; lower it, for"
            f" example to {length // 3}",
        )
        require(
            self.stride <= room,
            f"{section}stride",
            self.stride,
            f"leaves gaps between windows: rows of {length} hold {room} tokens of the"
            f" paragraph beside a question of {section}max_query_length="
            f"{self.max_query_length}; set {section}stride=0 for overlapping windows",
        )

    def read(self, spec, header, names, role):
        questions = question_data.read(spec, header, role)
        counts = collections.Counter(question.id for question in questions.questions)
        [(most, times)] = counts.most_common(1)
        if role != "train" and times > 1:
            raise ConfigError(
                f"{spec} has {times} questions with the id {most!r}; make ids unique"
            )
        return questions, ()

    def of_inputs(self, inputs, settings):
        questions = [
            Question(str(i), text.strip(), i, (), False)
            for i, (text, _) in enumerate(inputs)
        ]
        paragraphs = [paragraph for _, paragraph in inputs]
        return Questions(paragraphs, questions, settings["has_impossible"], 0, 0)

    def featurize(self, examples, names, tokenizer, length, role):
        return question_data.from_questions(
            examples,
            tokenizer,
            length=length,
            stride=self.window_stride(length),
            max_query_length=self.max_query_length,
            is_training=role == "train",
        )

    def loss(self, outputs, batch):
        """Returns the summed cross entropy in nats and the number of windows.

        The cross entropy of a window is the mean of those of its start and end
        positions. Padding positions are among the classes, as in the released code.
        """
        logits_BT2, weights_B = outputs.logits, batch["weights"]
        start, _ = weighted_cross_entropy(
            logits_BT2[:, :, 0], batch["start_positions"], weights_B
        )
        end, _ = weighted_cross_entropy(
            logits_BT2[:, :, 1], batch["end_positions"], weights_B
        )
        return (start + end) / 2, jnp.sum(weights_B)

    def distances(self, logits, teacher, batch, temperature):
        """Returns means of start and end, which are distributions over tokens."""
        logits, teacher = jnp.moveaxis(logits, 2, 1), jnp.moveaxis(teacher, 2, 1)
        found_B2 = base.divergences(logits, teacher, temperature)
        return jnp.mean(found_B2, axis=1), batch["weights"]

    def predict(self, examples, features, logits, names) -> "Answers":
        """Returns the best answers to all questions."""
        spans: list[list[_Span]] = [[] for _ in examples.questions]
        nulls: list[list[_Span]] = [[] for _ in examples.questions]
        max_context = features.windows.max_context()
        for first in range(0, len(features), _WINDOWS_AT_ONCE):
            windows_W = np.arange(first, min(first + _WINDOWS_AT_ONCE, len(features)))
            is_start_P = np.concatenate([max_context[w] for w in windows_W])
            for window, span in self._best_spans(
                examples, features, windows_W, is_start_P, logits[windows_W]
            ):
                spans[features.windows.question_W[window]].append(span)
        for question, (start, end) in zip(
            features.windows.question_W, logits[:, 0].tolist(), strict=True
        ):
            nulls[question].append(_Span(start, end, ""))
        answers = Answers({}, {}, {}, {})
        for question, found, null in zip(examples.questions, spans, nulls, strict=True):
            # The window that gives "no answer" the lowest score.
            least = min(null, key=_score)
            distinct: dict[str, _Span] = {}
            for span in sorted(found, key=_score, reverse=True):
                distinct.setdefault(span.text, span)
            best = list(distinct.values())[: self.num_best]
            # JSON has no infinity.
            odds = float(np.finfo("f4").max)
            if best:
                odds = _score(least) - _score(best[0])
            is_null = examples.has_impossible and odds > self.null_threshold
            answers.not_empty[question.id] = best[0].text if best else ""
            answers.texts[question.id] = "" if is_null or not best else best[0].text
            answers.null_odds[question.id] = odds
            if examples.has_impossible or not best:
                best = sorted([*best, least], key=_score, reverse=True)
            answers.best[question.id] = _with_probabilities(best[: self.num_best])
        return answers

    def _best_spans(
        self,
        questions: Questions,
        features: QuestionFeatures,
        windows_W: np.ndarray,
        is_start_P: np.ndarray,
        logits_WT2: np.ndarray,
    ) -> Iterator[tuple[int, "_Span"]]:
        """Yields windows with their best spans; a span may begin at some tokens P."""
        layout = features.rows.layout(windows_W)
        W, T = layout.source_BT.shape
        is_context_WT = (layout.segment_ids_BT == 1) & (layout.candidates_BT > 0)
        is_start_WT = is_context_WT.copy()
        is_start_WT[is_context_WT] = is_start_P
        start_WT = np.where(is_start_WT, logits_WT2[:, :, 0], -np.inf)
        end_WT = np.where(is_context_WT, logits_WT2[:, :, 1], -np.inf)
        A = min(self.max_answer_length, T)
        padded = np.pad(end_WT, ((0, 0), (0, A - 1)), constant_values=-np.inf)
        end_WTA = np.lib.stride_tricks.sliding_window_view(padded, A, axis=1)
        scores_WS = (start_WT[:, :, None] + end_WTA).reshape(W, T * A)
        K = min(self.num_best, T * A)
        order_WK = np.argpartition(-scores_WS, K - 1, axis=1)[:, :K]
        is_span_WK = np.isfinite(np.take_along_axis(scores_WS, order_WK, axis=1))
        for row, k in np.argwhere(is_span_WK):
            start, length = divmod(order_WK[row, k], A)
            end = start + length
            question = questions.questions[features.windows.question_W[windows_W[row]]]
            first = features.starts[layout.source_BT[row, start]]
            last = features.ends[layout.source_BT[row, end]]
            logits = float(logits_WT2[row, start, 0]), float(logits_WT2[row, end, 1])
            text = questions.paragraphs[question.paragraph][first:last]
            yield int(windows_W[row]), _Span(*logits, text)

    def evaluate(self, examples, predicted, names):
        scores = metrics_lib.squad(examples, predicted.texts, self.answer_units)
        if not examples.has_impossible:
            return scores
        best = metrics_lib.squad_thresholds(
            examples, predicted.not_empty, predicted.null_odds, self.answer_units
        )
        return scores | best

    def results(self, examples, predicted, logits, names):
        return [
            {"answer": predicted.texts[q.id], "best": list(predicted.best[q.id])}
            for q in examples.questions
        ]


@dataclasses.dataclass(frozen=True)
class Answers:
    """Answers in the form that leaderboards accept, keyed by question id."""

    texts: dict[str, str]  # the answer; "" means that the question has no answer
    # the best non-empty answer, used to search for a threshold
    not_empty: dict[str, str]
    # the most probable answers in descending order, each with text, probability,
    # start_logit and end_logit
    best: dict[str, list[dict[str, Any]]]
    # the score of "no answer" minus the score of the best answer
    null_odds: dict[str, float]


class _Span(NamedTuple):
    start_logit: float
    end_logit: float
    text: str


def _score(span: _Span) -> float:
    return span.start_logit + span.end_logit


def _with_probabilities(spans: list[_Span]) -> list[dict[str, Any]]:
    scores = np.array([_score(span) for span in spans])
    weights = np.exp(scores - scores.max())
    return [
        {
            "text": span.text,
            "probability": float(weight / weights.sum()),
            "start_logit": span.start_logit,
            "end_logit": span.end_logit,
        }
        for span, weight in zip(spans, weights, strict=True)
    ]
