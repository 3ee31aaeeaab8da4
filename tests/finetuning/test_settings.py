"""A workdir keeps the settings that it was started with."""

import dataclasses
import json

import pytest

from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning import settings
from bert_jax.finetuning.inputs import Start
from tests.finetuning import labelled


@pytest.fixture
def setup(tmp_path):
    return labelled.make_setup(tmp_path)


def take(setup, tmp_path, **changes):
    config = dataclasses.replace(setup.config, **changes)
    changed = dataclasses.replace(setup, config=config)
    start = Start(str(tmp_path / "source"), False, None)
    workdir = tmp_path / "run"
    workdir.mkdir(exist_ok=True)
    try:
        settings.take(str(workdir), changed, start)
    finally:
        (workdir / workdir_lib.LOCK_FILE).unlink()  # this process keeps the lock


def test_settings_that_affect_no_result_may_change(setup, tmp_path):
    take(setup, tmp_path)
    take(setup, tmp_path, remat="full", log_every_steps=7)
    stored = json.loads((tmp_path / "run" / settings.SETTINGS_FILE).read_text())
    assert stored["config"]["log_every_steps"] == 7


def test_another_setting_or_other_data_is_an_error(setup, tmp_path):
    take(setup, tmp_path)
    with pytest.raises(ConfigError, match="max_bad_steps=3, but .* started with"):
        take(setup, tmp_path, max_bad_steps=3)
    other = dataclasses.replace(setup, sha256=setup.sha256 | {"train": "0" * 64})
    with pytest.raises(ConfigError, match="config.data.train has changed since"):
        take(other, tmp_path)


def test_a_workdir_of_train_is_an_error(setup, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="has a run of python -m bert_jax.train"):
        take(setup, tmp_path)
