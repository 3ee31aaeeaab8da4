"""Metrics equal values computed by hand from their definitions."""

import sys

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning import metrics


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


def test_multi_label_with_a_single_class_is_f1_not_accuracy():
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


def test_tagging_without_entities():
    nothing = {"precision": 0, "recall": 0, "f1": 0}
    assert metrics.tagging([["O"]], [["O"]]) == nothing
    assert metrics.tagging([["O"]], [["B-a"]]) == nothing
