"""A workdir keeps its settings and gets the best model; the inputs are described."""

import dataclasses
import json
import os

import jax
import numpy as np
import pytest

from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning import results, sweep
from bert_jax.finetuning.setup import Datasets, Split
from bert_jax.finetuning.tasks.base import Texts
from bert_jax.finetuning.tasks.choice import Choices
from bert_jax.finetuning.tasks.tagging import Sentences
from tests.finetuning import labelled, tuned


@pytest.fixture
def setup(tmp_path):
    return labelled.make_setup(tmp_path)


def lock_and_check(setup, tmp_path, **changes):
    config = dataclasses.replace(setup.config, **changes)
    changed = dataclasses.replace(setup, config=config)
    workdir = tmp_path / "run"
    workdir.mkdir(exist_ok=True)
    try:
        sweep.lock_and_check(str(workdir), changed)
    finally:
        lock = workdir / workdir_lib.LOCK_FILE
        lock.unlink(missing_ok=True)  # this process keeps the lock


def test_only_settings_that_affect_no_result_may_change(setup, tmp_path):
    lock_and_check(setup, tmp_path)
    lock_and_check(setup, tmp_path, remat="full", log_every_steps=7)
    stored = json.loads((tmp_path / "run" / sweep.SETTINGS_FILE).read_text())
    assert stored["config"]["log_every_steps"] == 7
    with pytest.raises(ConfigError, match="max_bad_steps=3, .* 10; .*_length=24, or"):
        lock_and_check(setup, tmp_path, max_bad_steps=3, sequence_length=16)
    other = dataclasses.replace(setup, sha256=setup.sha256 | {"train": "0" * 64})
    with pytest.raises(ConfigError, match="config.data.train has changed since"):
        lock_and_check(other, tmp_path)


def test_a_workdir_of_train_is_an_error(setup, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="has config.json, like a model, or the"):
        lock_and_check(setup, tmp_path)
    assert os.listdir(tmp_path / "run") == ["config.json"]  # nothing is written


@pytest.mark.parametrize("name", ["model", "predictions"])
def test_a_link_in_place_of_a_directory_is_an_error(name, setup, tmp_path):
    lock_and_check(setup, tmp_path)
    path = tmp_path / "run" / name
    path.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=f"run/{name} is not a directory; remove it"):
        lock_and_check(setup, tmp_path)
    path.unlink()  # the advice
    lock_and_check(setup, tmp_path)


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
        best = results.Result(1e-3, 0, "", 1, {}, ())
        results.write_model(setup, params, str(tmp_path), best, {})
    assert all(path.is_dir() for path in theirs) and (tmp_path / "model.zip").exists()
    assert not left.exists() and not list(tmp_path.glob(".model*"))
    assert tuned.read(tmp_path / "model").head == setup.head
    card = tmp_path / "model" / "README.md"
    card.write_text(card.read_text() + "edited\n")  # does not make the model corrupt
    assert tuned.read(tmp_path / "model").head == setup.head


@pytest.mark.parametrize("link", ["", "same.tsv"])
def test_a_dev_set_that_is_the_training_set_is_reported(link, setup, tmp_path):
    assert "WARNING" not in sweep.describe(setup, "run", [1e-3])
    spec = setup.config.data.train
    if link:
        (tmp_path / link).symlink_to(spec.removeprefix("tsv:"))
        spec = f"tsv:{tmp_path / link}"
    same = dataclasses.replace(setup.datasets.dev[0], spec=spec)
    datasets = dataclasses.replace(setup.datasets, dev=(*setup.datasets.dev, same))
    changed = dataclasses.replace(setup, datasets=datasets)
    described = sweep.describe(changed, "run", [1e-3])
    (line,) = [x for x in described.splitlines() if "WARNING" in x]
    assert f"config.data.dev has {spec}, the training set" in line


def test_a_learning_rate_that_is_low_for_a_small_model_is_reported(setup):
    note = (
        "a learning rate of 2e-05 is low for a hidden size of 32; try --config.recipe."
    )
    assert note in sweep.describe(setup, "run", [2e-5])
    assert "is low for" not in sweep.describe(setup, "run", [2e-5, 3e-4])
    large = dataclasses.replace(setup.encoder.config, hidden_size=320)
    encoder = dataclasses.replace(setup.encoder, config=large)
    changed = dataclasses.replace(setup, encoder=encoder)
    assert "is low for" not in sweep.describe(changed, "run", [2e-5])


TEXTS = (["a", "b", "c"], None)


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
    train = Split("here", examples, None)
    none = Split("none", Choices([], [], None), None)
    datasets = Datasets(names, train, (none,), (none,))
    assert sweep.class_counts(datasets) == expected
