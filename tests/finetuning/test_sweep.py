"""A workdir keeps its settings, and gets the predictions and the best model."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning import sweep, tuned_model
from bert_jax.finetuning.setup import Start
from tests.finetuning import labelled, tuned


@pytest.fixture
def setup(tmp_path):
    return labelled.make_setup(tmp_path)


def lock_and_check(setup, tmp_path, **changes):
    config = dataclasses.replace(setup.config, **changes)
    changed = dataclasses.replace(setup, config=config)
    start = Start(str(tmp_path / "source"), False, None)
    workdir = tmp_path / "run"
    workdir.mkdir(exist_ok=True)
    try:
        sweep.lock_and_check(str(workdir), changed, start)
    finally:
        (workdir / workdir_lib.LOCK_FILE).unlink()  # this process keeps the lock


def test_settings_that_affect_no_result_may_change(setup, tmp_path):
    lock_and_check(setup, tmp_path)
    lock_and_check(setup, tmp_path, remat="full", log_every_steps=7)
    stored = json.loads((tmp_path / "run" / sweep.SETTINGS_FILE).read_text())
    assert stored["config"]["log_every_steps"] == 7


def test_another_setting_or_other_data_is_an_error(setup, tmp_path):
    lock_and_check(setup, tmp_path)
    with pytest.raises(ConfigError, match="max_bad_steps=3, but .* started with"):
        lock_and_check(setup, tmp_path, max_bad_steps=3)
    other = dataclasses.replace(setup, sha256=setup.sha256 | {"train": "0" * 64})
    with pytest.raises(ConfigError, match="config.data.train has changed since"):
        lock_and_check(other, tmp_path)


def test_a_workdir_of_train_is_an_error(setup, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="has a run of python -m bert_jax.train"):
        lock_and_check(setup, tmp_path)


@pytest.mark.parametrize("name", ["model", "predictions"])
def test_a_link_in_place_of_a_directory_is_an_error(name, setup, tmp_path):
    lock_and_check(setup, tmp_path)
    path = tmp_path / "run" / name
    path.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=f"run/{name} is not a directory; remove it"):
        lock_and_check(setup, tmp_path)
    path.unlink()  # the advice
    lock_and_check(setup, tmp_path)


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
    scores = sweep.write_predictions(setup, str(tmp_path), against, tests)
    assert list(scores) == list(setup.config.data.dev)
    directory = tmp_path / sweep.PREDICTIONS_DIRECTORY
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
        tuned_model.write(setup, params, str(tmp_path), {})
    assert all(path.is_dir() for path in theirs) and (tmp_path / "model.zip").exists()
    assert not left.exists() and not list(tmp_path.glob(".model*"))
    assert tuned.read(tmp_path / "model").head == setup.head
    card = tmp_path / "model" / "README.md"
    card.write_text(card.read_text() + "edited\n")  # does not make the model corrupt
    assert tuned.read(tmp_path / "model").head == setup.head
