"""Metrics equal values computed by hand from their definitions.

Those of SQuAD also equal those of torchmetrics.
"""

import sys

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning import metrics
from bert_jax.finetuning.tasks.question_data import Answer, Question, Questions


def test_missing_libraries_are_an_error_that_names_the_extra(monkeypatch):
    metrics.check_installed()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match=r"needs sklearn, .*'bert_jax\[finetune\]'"):
        metrics.check_installed()


def test_classification():
    labels, predicted = np.array([1, 1, 1, 0, 0]), np.array([1, 0, 1, 1, 0])
    found = metrics.classification(predicted, labels, 2)
    tp, fn, fp, tn = 2, 1, 1, 1
    matthews = (tp * tn - fp * fn) / np.sqrt(3 * 3 * 2 * 2)
    expected = {"accuracy": 0.6, "f1": 2 * tp / (2 * tp + fp + fn)}
    assert found == pytest.approx(expected | {"matthews": matthews})


def test_macro_f1_of_three_classes_weights_them_equally():
    labels, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 0, 0])
    found = metrics.classification(predicted, labels, 3)
    assert found["macro_f1"] == pytest.approx((6 / 7) / 3)
    assert found["matthews"] == 0 and "f1" not in found


def test_regression():
    labels = np.array([1.0, 2.0, 3.0, 4.0])
    found = metrics.regression(np.array([1.0, 4.0, 9.0, 16.0]), labels)
    assert found["spearman"] == pytest.approx(1)
    assert found["pearson"] == pytest.approx(np.corrcoef([1, 4, 9, 16], labels)[0, 1])
    assert metrics.regression(np.ones(4), labels) == {"pearson": 0, "spearman": 0}


def test_multi_label():
    labels = np.array([[1, 0, 0], [1, 1, 0]])
    predicted = np.array([[1, 1, 0], [0, 1, 0]])
    found = metrics.multi_label(predicted, labels)
    assert found == pytest.approx(
        {"micro_f1": 2 * 2 / (3 + 3), "macro_f1": (2 / 3 + 2 / 3 + 0) / 3}
    )
    # A single class has its F1, not the accuracy.
    labels, predicted = np.array([[1], [1], [0], [0]]), np.array([[1], [0], [0], [0]])
    found = metrics.multi_label(predicted, labels)
    assert found == pytest.approx({"micro_f1": 2 / 3, "macro_f1": 2 / 3})


def entities(tags):
    """Returns (first, end, type) of each entity, by a loop over the tags."""
    found, begin = set(), None
    for i, tag in enumerate([*tags, "O"]):
        if begin is not None and not (tag[0] == "I" and tag[2:] == begin[1]):
            found.add((begin[0], i, begin[1]))
            begin = None
        if tag != "O" and begin is None:
            begin = i, tag[2:]
    return found


def test_tagging_counts_entities_with_correct_span_and_type():
    random = np.random.default_rng(0)
    names = ["O", "B-a", "I-a", "B-b", "I-b"]
    tags = [list(random.choice(names, random.integers(1, 12))) for _ in range(200)]
    predicted = [
        [
            tag if random.random() < 0.8 else str(random.choice(names))
            for tag in sentence
        ]
        for sentence in tags
    ]
    found = metrics.tagging(predicted, tags)
    right = guessed = there = 0
    for theirs, ours in zip(tags, predicted, strict=True):
        right += len(entities(theirs) & entities(ours))
        guessed += len(entities(ours))
        there += len(entities(theirs))
    expected = {"precision": right / guessed, "recall": right / there}
    assert 0.3 < right / there < 0.9
    assert found == pytest.approx(expected | {"f1": 2 * right / (guessed + there)})
    nothing = {"precision": 0, "recall": 0, "f1": 0}
    assert metrics.tagging([["O"]], [["O"]]) == nothing
    assert metrics.tagging([["O"]], [["B-a"]]) == nothing


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
    found = metrics.squad(make([right]), {"0": answer}, "words")
    np.testing.assert_allclose([found["exact_match"], found["f1"]], [exact, f1])


def test_character_f1_uses_the_longest_common_run():
    questions = make([["北京市", "北京"], ["上海"]])
    answers = {"0": "在北京。", "1": "海上"}
    found = metrics.squad(questions, answers, "characters")
    # 2 of 3 characters match the second reference; 1 of 2 match in reverse order.
    expected = 100 * (2 * 2 / (3 + 2) + 2 * 1 / (2 + 2)) / 2
    np.testing.assert_allclose(found["f1"], expected)
    assert found["exact_match"] == 0
    by_words = metrics.squad(questions, answers, "words")
    assert by_words["f1"] == 0  # an answer without spaces is a single word


def test_questions_without_an_answer_by_characters():
    questions = make([[], [], ["北"], ["。"]], has_impossible=True)
    answers = {"0": "", "1": "北", "2": "", "3": "！"}
    found = metrics.squad(questions, answers, "characters")
    assert found == {"exact_match": 50.0, "f1": 50.0}  # punctuation is not an answer
    questions = make([[], [], ["北"]], has_impossible=True)
    odds = {"0": 1.0, "1": 2.0, "2": -1.0}
    predicted = {"0": "", "1": "北", "2": "北"}
    best = metrics.squad_thresholds(questions, predicted, odds, "characters")
    assert best["best_f1"] == 100.0 and -1 <= best["best_f1_threshold"] < 1


def test_questions_without_an_answer():
    questions = make([[], [], ["x y"], ["the"], ["x"]], has_impossible=True)
    answers = {"0": "", "1": "x", "2": "x", "3": "a"}
    found = metrics.squad(questions, answers, "words")
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
    found = metrics.squad_thresholds(questions, answers, odds, "words")
    for name in ("exact_match", "f1"):
        tried = []
        for threshold in (-10.0, *odds.values()):
            predicted = {i: "" if odds[i] > threshold else answers[i] for i in answers}
            tried.append(metrics.squad(questions, predicted, "words")[name])
        np.testing.assert_allclose(found[f"best_{name}"], max(tried))
        threshold = found[f"best_{name}_threshold"]
        predicted = {i: "" if odds[i] > threshold else answers[i] for i in answers}
        np.testing.assert_allclose(
            metrics.squad(questions, predicted, "words")[name], found[f"best_{name}"]
        )
    assert found["best_f1"] > metrics.squad(questions, answers, "words")["f1"]


def their_scores(questions, answers):
    text = pytest.importorskip("torchmetrics.functional.text")
    predicted = [{"id": id_, "prediction_text": x} for id_, x in answers.items()]
    references = []
    for question in questions.questions:
        texts = [answer.text for answer in question.answers]
        found = {"text": texts, "answer_start": [0] * len(texts)}
        references.append({"id": question.id, "answers": found})
    found = text.squad(predicted, references)
    return [float(found["exact_match"]), float(found["f1"])]


def test_scores_equal_those_of_torchmetrics():
    random = np.random.default_rng(1)
    words = "The a old river, bridge! U.S. crosses 1,000 an under-water".split()

    def draw():  # not only articles, where torchmetrics follows the rules of 2.0
        return " ".join(["it", *random.choice(words, random.integers(1, 5))])

    questions = make([[draw() for _ in range(3)] for _ in range(300)])
    answers = {str(i): draw() for i in range(300)}
    found = metrics.squad(questions, answers, "words")
    expected = their_scores(questions, answers)
    np.testing.assert_allclose([found["exact_match"], found["f1"]], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("", []),
        ("《三国演义》。", list("三国演义")),
        ("NBA球队 1996-97", ["nba", "球", "队", "199697"]),
        ("3.5%，10,000元", ["3.5", "%", "10,000", "元"]),
        ("(ab) don't.", ["(", "ab", ")", "don't", "."]),
        ("東京タワーです、", list("東京タワーです")),
        ("\U00020000〆café", ["\U00020000", "〆", "café"]),
        ("서울 시", ["서울", "시"]),
    ],
)
def test_characters_split_ideographs_and_kana_but_not_other_words(text, units):
    characters = metrics.UNITS["characters"]
    assert characters.find(characters.normalize(text)) == units


def test_frequent_characters_count():
    text = "的一" * 200  # long enough for difflib's popularity heuristic
    score = metrics.squad(make([[text]]), {"0": text}, "characters")
    assert score == {"exact_match": 100.0, "f1": 100.0}
