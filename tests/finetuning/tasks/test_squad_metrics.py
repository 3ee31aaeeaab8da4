"""Scores equal values computed by hand and those of torchmetrics.

Units follow SQuAD (words) and CMRC (characters).
"""

import numpy as np
import pytest

from bert_jax.finetuning.data.squad import Answer, Question, Questions
from bert_jax.finetuning.tasks import squad_metrics
from bert_jax.finetuning.tasks.squad_metrics import UNITS

CHARACTERS = UNITS["characters"]


def make(answers, has_impossible=False):
    """Returns questions 0, 1, ... with the given lists of reference answers."""
    questions = [
        Question(str(i), "", 0, tuple(Answer(t, 0) for t in texts), not texts)
        for i, texts in enumerate(answers)
    ]
    return Questions([""], questions, has_impossible, 0, 0)


@pytest.mark.parametrize(
    "right, answer, exact, f1",
    [
        (["Denver Broncos"], "the denver broncos!", 100, 100),
        (["Denver Broncos", "Broncos"], "Broncos", 100, 100),
        (["Denver Broncos"], "Broncos", 0, 100 * 2 / 3),
        (["one two three"], "three four", 0, 100 * 2 * (1 / 2) * (1 / 3) / (5 / 6)),
        (["a a b b"], "b b b", 0, 100 * 2 * (2 / 3) * 1 / (5 / 3)),
        (["x"], "", 0, 0),
        (["the"], "a", 100, 0),  # equal by the rules of 1.1, but without common words
    ],
)
def test_scores_by_hand(right, answer, exact, f1):
    found = squad_metrics.score(make([right]), {"0": answer}, "words")
    np.testing.assert_allclose([found["exact_match"], found["f1"]], [exact, f1])


def test_character_f1_uses_the_longest_common_run():
    questions = make([["\u5317\u4eac\u5e02", "\u5317\u4eac"], ["\u4e0a\u6d77"]])
    answers = {"0": "\u5728\u5317\u4eac\u3002", "1": "\u6d77\u4e0a"}
    found = squad_metrics.score(questions, answers, "characters")
    # 2 of 3 characters match the second reference; 1 of 2 match in reverse order.
    expected = 100 * (2 * 2 / (3 + 2) + 2 * 1 / (2 + 2)) / 2
    np.testing.assert_allclose(found["f1"], expected)
    assert found["exact_match"] == 0
    by_words = squad_metrics.score(questions, answers, "words")
    assert by_words["f1"] == 0  # an answer without spaces is a single word


def test_questions_without_an_answer_by_characters():
    questions = make([[], [], ["\u5317"], ["\u3002"]], has_impossible=True)
    answers = {"0": "", "1": "\u5317", "2": "", "3": "\uff01"}
    found = squad_metrics.score(questions, answers, "characters")
    assert found == {"exact_match": 50.0, "f1": 50.0}  # punctuation is not an answer
    questions = make([[], [], ["\u5317"]], has_impossible=True)
    odds = {"0": 1.0, "1": 2.0, "2": -1.0}
    predicted = {"0": "", "1": "\u5317", "2": "\u5317"}
    best = squad_metrics.best_thresholds(questions, predicted, odds, "characters")
    assert best["best_f1"] == 100.0 and -1 <= best["best_f1_threshold"] < 1


def test_questions_without_an_answer():
    questions = make([[], [], ["x y"], ["the"], ["x"]], has_impossible=True)
    answers = {"0": "", "1": "x", "2": "x", "3": "a"}
    found = squad_metrics.score(questions, answers, "words")
    # The fourth reference is a single article, which counts as "no answer"; the last
    # question has no prediction.
    np.testing.assert_allclose(found["exact_match"], 100 * 2 / 5)
    np.testing.assert_allclose(found["f1"], 100 * (2 + 2 / 3) / 5)


def test_the_best_threshold_equals_that_of_an_exhaustive_search():
    random = np.random.default_rng(0)
    words = ["x", "y", "x y", "z"]
    right = [[] if random.random() < 0.4 else [random.choice(words)] for _ in range(60)]
    questions = make(right, has_impossible=True)
    answers = {str(i): str(random.choice(words)) for i in range(60)}
    odds = {str(i): float(random.normal(0 if right[i] else 1)) for i in range(60)}
    found = squad_metrics.best_thresholds(questions, answers, odds, "words")
    for name in ("exact_match", "f1"):
        tried = []
        for threshold in (-10.0, *odds.values()):
            predicted = {i: "" if odds[i] > threshold else answers[i] for i in answers}
            tried.append(squad_metrics.score(questions, predicted, "words")[name])
        np.testing.assert_allclose(found[f"best_{name}"], max(tried))
        threshold = found[f"best_{name}_threshold"]
        predicted = {i: "" if odds[i] > threshold else answers[i] for i in answers}
        np.testing.assert_allclose(
            squad_metrics.score(questions, predicted, "words")[name],
            found[f"best_{name}"],
        )
    assert found["best_f1"] > squad_metrics.score(questions, answers, "words")["f1"]


def their_scores(questions, answers):
    text = pytest.importorskip("torchmetrics.functional.text")
    found = text.squad(
        [{"id": q.id, "prediction_text": answers[q.id]} for q in questions.questions],
        [
            {
                "id": q.id,
                "answers": {
                    "text": [answer.text for answer in q.answers],
                    "answer_start": [0] * len(q.answers),
                },
            }
            for q in questions.questions
        ],
    )
    return [float(found["exact_match"]), float(found["f1"])]


def test_scores_equal_those_of_torchmetrics():
    random = np.random.default_rng(1)
    words = "The a old river, bridge! U.S. crosses 1,000 an under-water".split()

    def draw():  # not only articles, where torchmetrics follows the rules of 2.0
        return " ".join(["it", *random.choice(words, random.integers(1, 5))])

    questions = make([[draw() for _ in range(3)] for _ in range(300)])
    answers = {str(i): draw() for i in range(300)}
    found = squad_metrics.score(questions, answers, "words")
    expected = their_scores(questions, answers)
    np.testing.assert_allclose([found["exact_match"], found["f1"]], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("", []),
        (
            "\u300a\u4e09\u56fd\u6f14\u4e49\u300b\u3002",
            ["\u4e09", "\u56fd", "\u6f14", "\u4e49"],
        ),
        ("NBA\u7403\u961f 1996-97", ["nba", "\u7403", "\u961f", "199697"]),
        ("3.5%\uff0c10,000\u5143", ["3.5", "%", "10,000", "\u5143"]),
        ("(ab) don't.", ["(", "ab", ")", "don't", "."]),
        (
            "\u6771\u4eac\u30bf\u30ef\u30fc\u3067\u3059\u3001",
            list("\u6771\u4eac\u30bf\u30ef\u30fc\u3067\u3059"),
        ),
        ("\U00020000\u3006caf\u00e9", ["\U00020000", "\u3006", "caf\u00e9"]),
        ("\uc11c\uc6b8 \uc2dc", ["\uc11c\uc6b8", "\uc2dc"]),
    ],
)
def test_characters_split_ideographs_and_kana_but_not_other_words(text, units):
    assert CHARACTERS.split(text) == units


def test_frequent_characters_count():
    text = "\u7684\u4e00" * 200  # long enough for difflib's popularity heuristic
    score = squad_metrics.score(make([[text]]), {"0": text}, "characters")
    assert score == {"exact_match": 100.0, "f1": 100.0}
