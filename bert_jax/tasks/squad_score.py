"""Exact match and F1 of answers by SQuAD's official rules, in percent.

Source: Rajpurkar et al. 2016 and 2018; the rules of evaluate-v1.1.py where every
question has an answer, and of evaluate-v2.0.py where some have none.
"""

import collections
import re
import string
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.tasks.squad import Question, Questions

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def score(questions: Questions, answers: dict[str, str]) -> dict[str, float]:
    """Returns exact_match and f1 over all questions, in percent.

    Args:
      questions: with their right answers.
      answers: by the question's id, "" for there is none; a missing one is wrong.
    """
    exact, f1 = (_scores(questions, answers, by) for by in (_exact, _f1))
    return {
        "exact_match": 100 * float(np.mean(exact)),
        "f1": 100 * float(np.mean(f1)),
    }


def best_thresholds(
    questions: Questions, answers: dict[str, str], null_odds: dict[str, float]
) -> dict[str, float]:
    """Returns the best scores that a threshold on null odds gives, and where.

    A question whose odds are above the threshold counts as said to have no answer.

    Args:
      questions: with their right answers, some with none.
      answers: the best ones that are not empty, by the question's id.
      null_odds: how much more likely it is that there is none, by the question's id.

    Returns:
      best_exact_match and best_f1 in percent, and the threshold of each.
    """
    odds = np.array([null_odds[question.id] for question in questions.questions])
    has_answer = np.array([bool(q.answers) for q in questions.questions])
    order = np.argsort(odds, kind="stable")
    found = {}
    for name, by in (("exact_match", _exact), ("f1", _f1)):
        right = np.array(_scores(questions, answers, by))
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


def normalize(answer: str) -> str:
    """Returns the answer in lower case without punctuation, articles, extra spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def _scores(
    questions: Questions,
    answers: dict[str, str],
    by: Callable[[str, str, bool], float],
) -> list[float]:
    return [
        max(
            (
                by(answers[question.id], right, questions.has_impossible)
                for right in _right(question, questions.has_impossible)
            ),
            default=0.0,
        )
        if question.id in answers
        else 0.0
        for question in questions.questions
    ]


def _right(question: Question, has_impossible: bool) -> Sequence[str]:
    texts = [answer.text for answer in question.answers]
    if not has_impossible:
        return texts
    return [text for text in texts if normalize(text)] or [""]


def _exact(answer: str, right: str, has_impossible: bool) -> float:
    return float(normalize(answer) == normalize(right))


def _f1(answer: str, right: str, has_impossible: bool) -> float:
    found, expected = normalize(answer).split(), normalize(right).split()
    if has_impossible and not (found and expected):
        return float(found == expected)
    common = sum((collections.Counter(found) & collections.Counter(expected)).values())
    # 2pr / (p + r) with p = common / found and r = common / expected.
    return 2 * common / (len(found) + len(expected)) if common else 0.0
