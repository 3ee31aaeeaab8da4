"""Metrics of a dev set, computed by scikit-learn, SciPy and nervaluate, and of SQuAD.

The libraries are imported inside the functions that use them: importing them takes
longer than the rest of a command's start-up, and most commands compute no metric.

SQuAD's exact match and F1, in percent, follow evaluate-v1.1.py if every question has an
answer, and evaluate-v2.0.py if some have none (Rajpurkar et al. 2016 and 2018). Answers
are compared in words, as there, or in characters, which follow the evaluation of CMRC
2018 (Cui et al. 2019) and are meant for text without spaces between words. They differ
from that evaluation in two points: kana are single characters, as ideographs are, to
support Japanese; and the text between single characters is split by the regular
expression below rather than by NLTK.

Shapes: N example, C class.
"""

import collections
import dataclasses
import difflib
import importlib.util
import re
import string
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.finetuning.tasks.question_data import Questions

# F1 of a class that occurs in neither predictions nor labels. The type is Any because
# scikit-learn's stubs declare `zero_division` as str only.
_UNDEFINED: Any = 0


def check_installed() -> None:
    for package in ("sklearn", "nervaluate"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"fine-tuning needs {package}, which is not installed; pip install"
                " 'bert_jax[finetune]'"
            )


def classification(
    predicted_N: np.ndarray, labels_N: np.ndarray, num_classes: int
) -> dict[str, float]:
    """Returns accuracy, Matthews correlation and F1.

    F1 is "f1", that of class 1, for two classes, and "macro_f1" otherwise.
    """
    import sklearn.metrics

    is_binary = num_classes == 2
    f1 = sklearn.metrics.f1_score(
        labels_N,
        predicted_N,
        labels=np.arange(num_classes),
        average="binary" if is_binary else "macro",
        zero_division=_UNDEFINED,
    )
    return {
        "accuracy": float(sklearn.metrics.accuracy_score(labels_N, predicted_N)),
        "matthews": float(sklearn.metrics.matthews_corrcoef(labels_N, predicted_N)),
        "f1" if is_binary else "macro_f1": float(f1),
    }


def regression(predicted_N: np.ndarray, labels_N: np.ndarray) -> dict[str, float]:
    """Returns Pearson and Spearman correlation; both are 0 if one side is constant."""
    import scipy.stats

    if min(np.ptp(predicted_N), np.ptp(labels_N)) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    pearson: Any = scipy.stats.pearsonr(predicted_N, labels_N)
    spearman: Any = scipy.stats.spearmanr(predicted_N, labels_N)
    return {"pearson": float(pearson.statistic), "spearman": float(spearman.statistic)}


def multi_label(predicted_NC: np.ndarray, labels_NC: np.ndarray) -> dict[str, float]:
    """Returns micro F1, over all decisions, and macro F1, the mean over classes.

    A class that occurs in neither predictions nor labels has an F1 of 0.
    """
    import sklearn.metrics

    # scikit-learn would interpret a single column as two classes.
    is_one = labels_NC.shape[1] == 1
    return {
        f"{average}_f1": float(
            sklearn.metrics.f1_score(
                labels_NC,
                predicted_NC,
                average="binary" if is_one else average,
                zero_division=_UNDEFINED,
            )
        )
        for average in ("micro", "macro")
    }


def tagging(predicted: list[list[str]], tags: list[list[str]]) -> dict[str, float]:
    """Returns precision, recall and F1 of entities, whose start, end and type count.

    Each sentence has a BIO tag for each word.
    """
    from nervaluate.evaluator import Evaluator

    types = sorted({tag[2:] for tags_ in (*predicted, *tags) for tag in tags_} - {""})
    evaluator = Evaluator(tags, predicted, types, loader="list")
    found = evaluator.evaluate()["overall"]["strict"]
    return {
        "precision": float(found.precision),
        "recall": float(found.recall),
        "f1": float(found.f1),
    }


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
    # returns the form of a text that exact match compares
    normalize: Callable[[str], str]
    find: Callable[[str], list[str]]  # returns the units of a normalized text
    # returns the number of units that two texts share
    count_common: Callable[[Sequence[str], Sequence[str]], int]


def _normalize_words(text: str) -> str:
    """Lower-cases the text and removes punctuation, articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _count_shared(a: Sequence[str], b: Sequence[str]) -> int:
    return sum((collections.Counter(a) & collections.Counter(b)).values())


def _normalize_characters(text: str) -> str:
    """Lower-cases the text and removes the punctuation that CMRC removes."""
    return text.lower().strip().translate(_CMRC_PUNCTUATION)


def _longest_common_run(a: Sequence[str], b: Sequence[str]) -> int:
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return matcher.find_longest_match().size


UNITS = {
    "words": Units(_normalize_words, str.split, _count_shared),
    "characters": Units(_normalize_characters, _UNITS.findall, _longest_common_run),
}


def squad(
    questions: "Questions", answers: dict[str, str], units: str
) -> dict[str, float]:
    """Returns exact_match and f1 over all questions, in percent.

    The answers are by question id; "" means "no answer", and a question without one
    scores 0.
    """
    scores = _scores(questions, answers, UNITS[units])
    return {name: 100 * float(np.mean(scores_Q)) for name, scores_Q in scores.items()}


def squad_thresholds(
    questions: "Questions",
    answers: dict[str, str],
    null_odds: dict[str, float],
    units: str,
) -> dict[str, float]:
    """Finds the thresholds on null odds that maximize exact match and F1, in percent.

    The prediction for a question whose null odds exceed the threshold is "no answer".

    By question id, `answers` has the best non-empty answer, and `null_odds` the score
    of "no answer" minus that of the answer.
    """
    odds = np.array([null_odds[question.id] for question in questions.questions])
    has_answer = np.array([bool(q.answers) for q in questions.questions])
    # Relative to predicting "no answer" throughout, an answer gains its score, or loses
    # one point if the question has no answer.
    is_text = np.array([bool(answers.get(q.id, "")) for q in questions.questions])
    order = np.argsort(odds, kind="stable")
    best_of = {}
    for name, scores_Q in _scores(questions, answers, UNITS[units]).items():
        gains = np.where(has_answer, scores_Q, -is_text.astype(float))[order]
        totals = np.concatenate([[0.0], np.cumsum(gains)]) + (~has_answer).sum()
        best = int(np.argmax(totals))
        best_of[f"best_{name}"] = 100 * float(totals[best]) / len(odds)
        # If "no answer" throughout is best, the threshold is below all odds.
        threshold = odds[order][best - 1] if best else odds.min() - 1
        best_of[f"best_{name}_threshold"] = float(threshold)
    return best_of


def _scores(
    questions: "Questions", answers: dict[str, str], units: Units
) -> dict[str, np.ndarray]:
    """Returns float64[Q] by metric, of each question for its best reference."""
    scores_Q2 = []
    for question in questions.questions:
        references = [answer.text for answer in question.answers]
        if questions.has_impossible:  # "" is the reference of "no answer"
            references = [x for x in references if units.normalize(x)] or [""]
        pairs = [(0.0, 0.0)]
        if question.id in answers:
            pairs += [
                _score(units, answers[question.id], text, questions.has_impossible)
                for text in references
            ]
        scores_Q2.append(np.max(pairs, axis=0))
    return dict(zip(("exact_match", "f1"), np.array(scores_Q2).T, strict=True))


def _score(
    units: Units, answer: str, reference: str, has_impossible: bool
) -> tuple[float, float]:
    """Returns exact match, and the F1 of an answer's units."""
    answer, reference = units.normalize(answer), units.normalize(reference)
    is_equal = float(answer == reference)
    answered, expected = units.find(answer), units.find(reference)
    if has_impossible and not (answered and expected):
        return is_equal, float(answered == expected)
    common = units.count_common(answered, expected)
    # 2pr / (p + r) with p = common / answered and r = common / expected.
    f1 = 2 * common / (len(answered) + len(expected)) if common else 0.0
    return is_equal, f1
