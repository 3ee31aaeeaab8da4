"""Tests of bert_jax.loading.trained_run."""

import pytest

from bert_jax import errors
from bert_jax.checkpoint import workdir
from bert_jax.loading import trained_run as run_lib
from tests.conftest import make_config


def test_run_opens_on_as_many_devices_as_divide_its_batch(newest, trained):
    """The run was trained on one device; here are eight, and 16 rows in a batch."""
    assert (newest.step, newest.phase_index) == (20, 0)
    assert newest.mesh.size == 8
    assert newest.config == workdir.read_config(str(trained / "run"))


def test_missing_or_unfinished_corpus_is_an_error(tmp_path):
    (tmp_path / "run").mkdir()
    workdir.write_config(str(tmp_path / "run"), make_config())
    with pytest.raises(errors.ConfigError) as error:
        run_lib.open_run(str(tmp_path / "run"), None, str(tmp_path))
    assert f"the run's corpus is not at '{tmp_path}' (relative" in str(error.value)
    assert "prepare and the flags with which it was begun" in str(error.value)
