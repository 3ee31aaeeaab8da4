"""Results are stored, read back and ranked; the table and plots show them."""

import dataclasses
import json
import math
import pathlib
import re

import numpy as np
import pytest

from bert_jax.errors import CorruptError
from bert_jax.finetuning import results
from bert_jax.finetuning.results import Result
from bert_jax.finetuning.tasks import TASKS
from bert_jax.finetuning.tasks.base import Texts
from bert_jax.finetuning.tasks.choice import Choices
from bert_jax.finetuning.tasks.tagging import Sentences
from tests.finetuning import labelled


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


def test_results_of_a_sweep_are_read_by_learning_rate_and_seed(tmp_path):
    expected = [result(3e-3, 0, 0.3), result(3e-3, 1, 0.3, "\u00e9")]
    expected.append(result(1e-3, 0, 0.3))
    for each in reversed(expected):
        rate, seed = each.learning_rate, each.seed
        directory = results.directory_of(str(tmp_path), rate, seed)
        assert results.read(directory) is None
        pathlib.Path(directory).mkdir(parents=True)
        results.write(directory, each)
    (tmp_path / "runs" / "lr0.001_seed1").mkdir()  # not complete
    assert results.read_all(str(tmp_path)) == expected


def test_an_undefined_metric_is_null_in_the_file_and_nan_when_read(tmp_path, capsys):
    history = ({"step": 10, "pearson": math.nan},)
    stored = Result(2e-5, 0, "", 10, {"pearson": math.nan}, history)
    results.write(str(tmp_path), stored)
    values = json.loads((tmp_path / "result.json").read_text())
    assert values["metrics"] == {"pearson": None}
    assert values["history"] == [{"step": 10, "pearson": None}]
    found = results.read(str(tmp_path))
    assert math.isnan(found.metrics["pearson"] + found.history[0]["pearson"])
    results.print_table([found], "pearson")
    assert "nan" in capsys.readouterr().out


BROKEN = {"metrics": [], "history": []}


@pytest.mark.parametrize("content", [{"seed": 0}, {"history": []}, BROKEN, 0, []])
def test_a_corrupt_result_is_an_error(tmp_path, content):
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(CorruptError, match="result.json is .*; remove .* to repeat"):
        results.read(str(tmp_path))


def test_the_first_highest_metric_is_the_best_and_nan_ranks_last():
    history = [
        {"step": step, "f1": f1} for step, f1 in enumerate([math.nan, -1.0, 0.5, 0.5])
    ]
    assert results.best(history, "f1")["step"] == 2
    assert results.best([], "f1") == {}
    assert results.worth({}, "f1") == results.worth(history[0], "f1") == -math.inf


RESULTS = [
    result(2e-5, 0, 0.7),
    result(2e-5, 1, 0.8),
    result(5e-5, 0, 0.6),
    result(5e-5, 1, 0.0, "not finite"),
]


def test_the_table_has_every_run_and_the_deviation_over_seeds(capsys):
    results.print_table(RESULTS, "accuracy")
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["2e-05", "0", "10", "0.7000", "0.3500"] in lines
    assert ["5e-05", "1", "0", "diverged", "diverged"] in lines
    assert "2e-05: accuracy 0.7500, standard deviation 0.0707 over 2 seeds" in text
    assert "learning rate 5e-05:" not in text  # only one of its runs completed
    assert "is the highest" not in text
    names = [f"a_metric_of_a_long_name_{i}" for i in range(6)]
    wide = dataclasses.replace(RESULTS[0], metrics=dict.fromkeys(names, 75.25))
    results.print_table([wide], names[0])
    assert capsys.readouterr().out.split().count("75.2500") == 6  # in 80 columns, too
    results.print_table([*RESULTS, result(5e-5, 2, 0.9)], "accuracy")
    assert "The best learning rate is the highest; try" in capsys.readouterr().out


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
        (Choices(["a"], [["b", "c"]], np.array([0], np.int32)), np.array([1]), None),
    ],
)
def test_only_classes_have_a_confusion_matrix(examples, predicted, expected, tmp_path):
    names = ("no", "yes")
    assert examples.class_pairs(predicted, names) == expected
    path = results.plot_confusion(str(tmp_path), examples, predicted, names)
    assert (path is not None and path.is_file()) == (expected is not None)


def test_a_name_of_a_class_is_no_formula(tmp_path):
    examples = Texts(*TEXTS, np.array([0, 1, 1], np.int32), np.arange(3))
    names = "0_$0_$5", "$x"
    assert results.plot_confusion(str(tmp_path), examples, np.array([0, 0, 1]), names)


def test_every_set_has_its_predictions(tmp_path):
    """Two dev sets, as in MNLI, and two test sets of GLUE with their own indices."""
    test = "tsv:" + str(tmp_path / "test.tsv")
    (tmp_path / "test.tsv").write_text("sentence\tindex\nw1\t1\nw2\t0\nw3\t2\n")
    dev = labelled.write_table(tmp_path / "other.tsv", 7, 2)
    setup = labelled.make_setup(
        tmp_path,
        data__dev=(labelled.write_table(tmp_path / "dev.tsv", 30, 1), dev),
        data__test=(test, test),
        task__glue=("mnli_matched", "sst2"),
        task__index="index",
    )
    against = [np.zeros(30, int), np.zeros(7, int)]
    tests = [np.array([0, 1, 1]), np.array([1, 1, 0])]
    (tmp_path / results.PREDICTIONS_DIRECTORY / "test3").mkdir(parents=True)
    scores = results.write_predictions(setup, str(tmp_path), against, tests)
    assert list(scores) == list(setup.config.data.dev)
    directory = tmp_path / results.PREDICTIONS_DIRECTORY
    for name, spec, count in (("dev1", setup.config.data.dev[0], 30), ("dev2", dev, 7)):
        lines = (directory / name / "predictions.jsonl").read_text().splitlines()
        assert len(lines) == count
        right = (tmp_path / spec.rpartition("/")[2]).read_text().count("\tagainst")
        assert scores[spec]["accuracy"] == right / count
    assert not (directory / "test3").exists()  # of an earlier call
    by_name = (directory / "test1" / "MNLI-m.tsv").read_text().splitlines()
    assert by_name == ["index\tprediction", "0\tfor", "1\tagainst", "2\tfor"]
    by_number = (directory / "test2" / "SST-2.tsv").read_text().splitlines()
    assert by_number == ["index\tprediction", "0\t1", "1\t1", "2\t0"]


def write_card(tmp_path, kind, **more):
    setup = labelled.make_setup(tmp_path, kind=kind, **more)
    scores = {"tsv:dev.tsv": {"accuracy": 0.87654}}
    results.write_card(tmp_path, setup, result(1e-4, 2, 0.9), scores)
    return (tmp_path / "README.md").read_text(), setup


def test_the_card_has_metrics_labels_and_config(tmp_path):
    card, setup = write_card(tmp_path, "classification")
    metadata = card.split("---\n")[1].splitlines()
    assert "library_name: transformers" in metadata
    assert "pipeline_tag: text-classification" in metadata
    assert "AutoModelForSequenceClassification.from_pretrained" in card
    assert "| `tsv:dev.tsv` | accuracy | 0.8765 |" in card
    assert "`against`, `for`" in card and "rows of up to 24 tokens" in card
    block = card.split("```json\n")[1].split("```")[0]
    expected = json.loads(setup.config.to_json())
    expected["recipe"]["learning_rate"] = 1e-4  # that of the best run of a sweep
    assert json.loads(block) == expected and ": seed 2, step 10.\n" in card


@pytest.mark.parametrize("kind", TASKS)
def test_the_card_names_a_transformers_class_and_how_pairs_are_truncated(
    kind, tmp_path
):
    card, _ = write_card(tmp_path, kind)
    assert ("the longer text" in card) == (kind in ("regression", "multiple_choice"))
    assert ("overlapping rows" in card) == (kind == "question_answering")
    assert ("truncated at the end" in card) != (kind == "question_answering")
    transformers = pytest.importorskip("transformers")
    (name,) = re.findall(r"import (AutoModel\w*), AutoTokenizer", card)
    assert hasattr(transformers, name)
