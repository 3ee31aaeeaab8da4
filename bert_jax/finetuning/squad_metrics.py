"""SQuAD metrics: exact match and F1 in percent, and the best "no answer" threshold.

Source: Rajpurkar et al. 2016 and 2018. Follows evaluate-v1.1.py if every question has
an answer, and evaluate-v2.0.py if some have none.
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
      questions: questions with reference answers.
      answers: predicted answers by question id; "" means "no answer". A question
        without an entry scores 0.
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
    """Finds the thresholds on null odds that maximize exact match and F1.

    The prediction for a question whose null odds exceed the threshold is "no answer".

    Args:
      questions: questions with reference answers; some have none.
      answers: the best non-empty answers, by question id.
      null_odds: score of "no answer" minus score of the answer, by question id.
      units: a key of `answer_units.UNITS`.

    Returns:
      best_exact_match and best_f1 in percent, and best_exact_match_threshold and
      best_f1_threshold.
    """
    odds = np.array([null_odds[question.id] for question in questions.questions])
    has_answer = np.array([bool(q.answers) for q in questions.questions])
    order = np.argsort(odds, kind="stable")
    found = {}
    for name, by in _METRICS.items():
        scores = np.array(_scores(questions, answers, by, UNITS[units]))
        # Relative to predicting "no answer" throughout, an answer gains its score, or
        # loses one point if the question has no answer.
        is_text = np.array([bool(answers.get(q.id, "")) for q in questions.questions])
        gains = np.where(has_answer, scores, -is_text.astype(float))[order]
        totals = np.concatenate([[0.0], np.cumsum(gains)]) + (~has_answer).sum()
        best = int(np.argmax(totals))
        found[f"best_{name}"] = 100 * float(totals[best]) / len(odds)
        # If "no answer" throughout is best, the threshold is below all odds.
        threshold = odds[order][best - 1] if best else odds.min() - 1
        found[f"best_{name}_threshold"] = float(threshold)
    return found


def _exact_match(units: Units, answer: str, reference: str, _: bool) -> float:
    return units.exact_match(answer, reference)


def _f1(units: Units, answer: str, reference: str, has_impossible: bool) -> float:
    if has_impossible and not (units.split(answer) and units.split(reference)):
        return float(units.split(answer) == units.split(reference))
    return units.f1(answer, reference)


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
                by(units, answers[question.id], text, questions.has_impossible)
                for text in _references(question, questions.has_impossible, units)
            ),
            default=0.0,
        )
        if question.id in answers
        else 0.0
        for question in questions.questions
    ]


def _references(
    question: Question, has_impossible: bool, units: Units
) -> Sequence[str]:
    """Returns the reference answers; "" is the reference of "no answer"."""
    texts = [answer.text for answer in question.answers]
    if not has_impossible:
        return texts
    return [text for text in texts if units.normalize(text)] or [""]
