"""Tests of bert_jax.training.resume."""

from pathlib import Path

import pytest

from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.phases import Position, Skip
from bert_jax.training import resume, rollbacks
from tests.conftest import make_config

BEFORE = Position("corpus")
AFTER = Position("corpus", (Skip(0, 30, 8),), rollbacks=1)


def test_a_new_workdir_is_created_and_starts_at_step_0(tmp_path):
    workdir = tmp_path / "a" / "run"
    assert resume.lock_workdir(str(workdir), make_config()) == 0
    assert workdir.is_dir()


@pytest.mark.parametrize(("first_step", "expected"), [(0, BEFORE), (30, AFTER)])
def test_begin_writes_the_config_and_keeps_the_rollbacks_of_a_resumed_run(
    tmp_path: Path, first_step, expected
):
    config = make_config()
    rollbacks.write(str(tmp_path), 30, AFTER)
    resume.begin_workdir(str(tmp_path), config, first_step)
    assert workdir_lib.read_config(str(tmp_path)) == config
    assert rollbacks.resumed(str(tmp_path), 30, BEFORE) == expected
