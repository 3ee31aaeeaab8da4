"""Predictions and model files that a sweep writes."""

import jax
import numpy as np
import pytest

from bert_jax.finetuning import outcome
from bert_jax.loading import model as model_lib
from tests.finetuning import labelled


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
    scores = outcome.write_predictions(setup, str(tmp_path), against, tests)
    assert list(scores) == list(setup.config.data.dev)
    directory = tmp_path / outcome.PREDICTIONS_DIRECTORY
    for name, spec, count in (("dev1", setup.config.data.dev[0], 30), ("dev2", dev, 7)):
        lines = (directory / name / "predictions.jsonl").read_text().splitlines()
        assert len(lines) == count
        right = (tmp_path / spec.rpartition("/")[2]).read_text().count("\tagainst")
        assert scores[spec]["accuracy"] == right / count
    by_name = (directory / "test1" / "MNLI-m.tsv").read_text().splitlines()
    assert by_name == ["index\tprediction", "0\tfor", "1\tagainst", "2\tfor"]
    by_number = (directory / "test2" / "SST-2.tsv").read_text().splitlines()
    assert by_number == ["index\tprediction", "0\t1", "1\t1", "2\t0"]


@pytest.mark.slow
def test_a_model_replaces_an_older_one_and_no_other_directory(tmp_path):
    setup = labelled.make_setup(tmp_path)
    params = jax.jit(lambda: setup.build(jax.random.key(0))[1])()
    theirs = [tmp_path / "model.bak", tmp_path / "model.old"]
    for path in theirs:
        path.mkdir()
    (tmp_path / "model.zip").touch()
    left = tmp_path / ".model.unfinished.x"  # left by a killed process
    left.mkdir()
    for _ in range(2):
        outcome.write_model(setup, params, str(tmp_path), {})
    assert all(path.is_dir() for path in theirs) and (tmp_path / "model.zip").exists()
    assert not left.exists() and not list(tmp_path.glob(".model*"))
    assert model_lib.read_tuned(str(tmp_path / "model")).head == setup.head
    card = tmp_path / "model" / "README.md"
    card.write_text(card.read_text() + "edited\n")  # does not make the model corrupt
    assert model_lib.read_tuned(str(tmp_path / "model")).head == setup.head
