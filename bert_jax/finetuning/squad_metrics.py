"""Exact match and F1 of answers, in percent, and the best threshold of no answer.

Source: Rajpurkar et al. 2016 and 2018; the rules of evaluate-v1.1.py where every
question has an answer, and of evaluate-v2.0.py where some have none.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.finetuning.answer_units import UNITS, Units
from bert_jax.finetuning.data.squad import Question, Questions


def score(
    questions: Questions, answers: dict[str, str], units: str
) -> dict[str, float]:
    """Returns exact_match and f1 over all questions, in percent.

    Args:
      questions: with their right answers.
      answers: by the question's id, "" for there is none; a missing one is wrong.
      units: a key of `answer_units.UNITS`.
    """
    return {
        name: 100 * float(np.mean(_scores(questions, answers, by, UNITS[units])))
        for name, by in _METRICS.items()
    }


def best_thresholds(
    questions: Questions,
    answers: dict[str, str],
    null_odds: dict[str, float],
    units: str,
) -> dict[str, float]:
    """Returns the best scores that a threshold on null odds gives, and where.

    A question whose odds are above the threshold counts as said to have no answer.

    Args:
      questions: with their right answers, some with none.
      answers: the best ones that are not empty, by the question's id.
      null_odds: how much more likely it is that there is none, by the question's id.
      units: a key of `answer_units.UNITS`.

    Returns:
      best_exact_match and best_f1 in percent, and the threshold of each.
    """
    odds = np.array([null_odds[question.id] for question in questions.questions])
    has_answer = np.array([bool(q.answers) for q in questions.questions])
    order = np.argsort(odds, kind="stable")
    found = {}
    for name, by in _METRICS.items():
        right = np.array(_scores(questions, answers, by, UNITS[units]))
        # An answer gains its score, or loses the point for having said none.
        said = np.array([bool(answers.get(q.id, "")) for q in questions.questions])
        gains = np.where(has_answer, right, -said.astype(float))[order]
        totals = np.concatenate([[0.0], np.cumsum(gains)]) + (~has_answer).sum()
        best = int(np.argmax(totals))
        found[f"best_{name}"] = 100 * float(totals[best]) / len(odds)
        # Below all of them where it is best to say none throughout.
        threshold = odds[order][best - 1] if best else odds.min() - 1
        found[f"best_{name}_threshold"] = float(threshold)
    return found


def _exact_match(units: Units, answer: str, right: str, _has_impossible: bool) -> float:
    return units.exact_match(answer, right)


def _f1(units: Units, answer: str, right: str, has_impossible: bool) -> float:
    if has_impossible and not (units.split(answer) and units.split(right)):
        return float(units.split(answer) == units.split(right))
    return units.f1(answer, right)


_METRICS = {"exact_match": _exact_match, "f1": _f1}


def _scores(
    questions: Questions,
    answers: dict[str, str],
    by: Callable[[Units, str, str, bool], float],
    units: Units,
) -> list[float]:
    return [
        max(
            (
                by(units, answers[question.id], right, questions.has_impossible)
                for right in _right(question, questions.has_impossible, units)
            ),
            default=0.0,
        )
        if question.id in answers
        else 0.0
        for question in questions.questions
    ]


def _right(question: Question, has_impossible: bool, units: Units) -> Sequence[str]:
    texts = [answer.text for answer in question.answers]
    if not has_impossible:
        return texts
    return [text for text in texts if units.normalize(text)] or [""]
