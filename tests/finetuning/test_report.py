"""The table and plots of a sweep show the results of its runs."""

import numpy as np
import pytest

from bert_jax.finetuning import report
from bert_jax.finetuning.data.conll import Sentences
from bert_jax.finetuning.data.datasets import Datasets, Split
from bert_jax.finetuning.data.examples import Texts
from bert_jax.finetuning.results import Result
from bert_jax.finetuning.tasks.choice import Choices


def result(learning_rate, seed, accuracy, diverged=""):
    history = tuple(
        {"step": step, "accuracy": value, "f1": value / 2}
        for step, value in ((5, accuracy / 2), (10, accuracy))
    )
    if diverged:
        return Result(learning_rate, seed, diverged, 0, {}, ())
    return Result(
        learning_rate, seed, "", 10, dict(list(history[-1].items())[1:]), history
    )


RESULTS = [
    result(2e-5, 0, 0.7),
    result(2e-5, 1, 0.8),
    result(5e-5, 0, 0.6),
    result(5e-5, 1, 0.0, "not finite"),
]


def test_the_table_has_every_run_and_the_deviation_over_seeds(capsys):
    report.print_table(RESULTS, "accuracy")
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["2e-05", "0", "10", "0.7000", "0.3500"] in lines
    assert ["5e-05", "1", "0", "diverged", "diverged"] in lines
    assert "2e-05: accuracy 0.7500, standard deviation 0.0707 over 2 seeds" in text
    assert "learning rate 5e-05:" not in text  # only one of its runs completed


def test_curves_are_written_as_png(tmp_path):
    path = report.plot_curves(str(tmp_path), RESULTS, "accuracy")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


TEXTS = (["a", "b", "c"], None)


@pytest.mark.parametrize(
    "examples, predicted, expected",
    [
        (
            Texts(*TEXTS, np.array([0, 1, 1], np.int32), np.arange(3)),
            np.array([0, 0, 1]),
            (["no", "yes", "yes"], ["no", "no", "yes"]),
        ),
        (
            Sentences("", [["a", "b"], ["c"]], [["no", "yes"], ["no"]]),
            [["no", "no"], ["no"]],
            (["no", "yes", "no"], ["no", "no", "no"]),
        ),
        (
            Texts(*TEXTS, np.array([0.5, 1, 1], np.float32), np.arange(3)),
            np.ones(3),
            None,
        ),
        (
            Texts(*TEXTS, np.ones((3, 2), np.float32), np.arange(3)),
            np.ones((3, 2)),
            None,
        ),
        (Choices(["a"], [["b", "c"]], np.array([0], np.int32)), np.array([1]), None),
    ],
)
def test_only_classes_have_a_confusion_matrix(examples, predicted, expected, tmp_path):
    names = ("no", "yes")
    assert examples.class_pairs(predicted, names) == expected
    path = report.plot_confusion(str(tmp_path), examples, predicted, names)
    assert (path is not None and path.is_file()) == (expected is not None)


def split(spec, examples):
    return Split(spec, examples, None)


@pytest.mark.parametrize(
    "names, examples, expected",
    [
        (
            ("no", "yes"),
            Texts(*TEXTS, np.array([0, 1, 1], np.int32), np.arange(3)),
            ["here: no 1, yes 2"],
        ),
        (
            ("a", "b", "c"),
            Texts(*TEXTS, np.array([[1, 1, 0]] * 2, np.float32), np.arange(3)),
            ["here: a 2, b 2, c 0"],
        ),
        (
            tuple(map(str, range(30))),
            Texts(*TEXTS, np.array([*range(30), 7, 7], np.int32), np.arange(3)),
            ["here: from 29 1 to 7 3"],
        ),
        (
            ("O", "B-A", "I-A", "B-B", "I-B"),
            Sentences("", [["a"] * 4], [["B-A", "I-A", "B-B", "B-A"]]),
            ["here: A 2, B 1"],
        ),
        (("x",), Texts(*TEXTS, np.array([0.5, 1, 1], np.float32), np.arange(3)), []),
        ((), Choices(["a"], [["b", "c"]], np.array([0])), []),
    ],
)
def test_the_examples_of_each_class_are_counted(names, examples, expected):
    train, none = split("here", examples), split("none", Choices([], [], None))
    datasets = Datasets(names, train, (none,), (none,))
    assert report.class_counts(datasets) == expected
