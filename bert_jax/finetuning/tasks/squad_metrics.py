"""SQuAD metrics: exact match and F1 in percent, and the best "no answer" threshold.

Follows evaluate-v1.1.py if every question has an answer, and evaluate-v2.0.py if some
have none (Rajpurkar et al. 2016 and 2018).

Answers are compared in words, as there, or in characters, which follow the evaluation
of CMRC 2018 (Cui et al. 2019) and are meant for text without spaces between words. They
differ from that evaluation in two points: kana are single characters, as ideographs
are, to support Japanese; and the text between single characters is split by the regular
expression below rather than by NLTK.
"""

import collections
import dataclasses
import difflib
import re
import string
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.finetuning.data.squad import Question, Questions

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

# Punctuation that CMRC's evaluation removes. ASCII . , ! ? ( ) are not among it.
_CMRC_PUNCTUATION = str.maketrans(
    "",
    "",
    "-:_*^/\\~`+="
    "\uff0c\u3002\uff1a\uff1f\uff01\u201c\u201d\uff1b\u2019\u300a\u300b\u00b7\u3001"
    "\u300c\u300d\uff08\uff09\uff0d\uff5e\u300e\u300f",
)
# Ideographs, hiragana and katakana.
_SINGLE = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
_LETTER = rf"[^\W_{_SINGLE}]"
# A single character; a word or number, with punctuation inside as in 3.5; or one
# punctuation character.
_UNITS = re.compile(rf"[{_SINGLE}]|{_LETTER}+(?:[.,']{_LETTER}+)*|\S")


@dataclasses.dataclass(frozen=True)
class Units:
    """Rules for comparing two answers.

    Attributes:
      normalize: returns the form of a text that exact match compares.
      split: returns the units of a text.
      count_common: returns the number of units that two texts share.
    """

    normalize: Callable[[str], str]
    split: Callable[[str], list[str]]
    count_common: Callable[[Sequence[str], Sequence[str]], int]


def _normalize_words(text: str) -> str:
    """Lower-cases the text and removes punctuation, articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _split_words(text: str) -> list[str]:
    return _normalize_words(text).split()


def _count_shared(a: Sequence[str], b: Sequence[str]) -> int:
    return sum((collections.Counter(a) & collections.Counter(b)).values())


def _normalize_characters(text: str) -> str:
    """Lower-cases the text and removes the punctuation that CMRC removes."""
    return text.lower().strip().translate(_CMRC_PUNCTUATION)


def _split_characters(text: str) -> list[str]:
    return _UNITS.findall(_normalize_characters(text))


def _longest_common_run(a: Sequence[str], b: Sequence[str]) -> int:
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return matcher.find_longest_match().size


UNITS = {
    "words": Units(_normalize_words, _split_words, _count_shared),
    "characters": Units(_normalize_characters, _split_characters, _longest_common_run),
}


def score(
    questions: Questions, answers: dict[str, str], units: str
) -> dict[str, float]:
    """Returns exact_match and f1 over all questions, in percent.

    Args:
      answers: predicted answers by question id; "" means "no answer". A question
        without an entry scores 0.
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
      answers: the best non-empty answers, by question id.
      null_odds: score of "no answer" minus score of the answer, by question id.

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
    return float(units.normalize(answer) == units.normalize(reference))


def _f1(units: Units, answer: str, reference: str, has_impossible: bool) -> float:
    """Returns the harmonic mean of precision and recall over an answer's units."""
    found, expected = units.split(answer), units.split(reference)
    if has_impossible and not (found and expected):
        return float(found == expected)
    common = units.count_common(found, expected)
    # 2pr / (p + r) with p = common / found and r = common / expected.
    return 2 * common / (len(found) + len(expected)) if common else 0.0


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
