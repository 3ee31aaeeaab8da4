"""Tests of bert_jax.training.resume."""

import dataclasses
from types import SimpleNamespace

import pytest

from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.errors import CorruptError, DivergedError
from bert_jax.phases import Position, Skip
from bert_jax.training import resume
from tests.conftest import make_config

BEFORE = Position("corpus")
AFTER = Position("corpus", (Skip(0, 30, 8),), rollbacks=1)
LATER = Position("corpus", (*AFTER.skips, Skip(1, 0, 2)), rollbacks=1)


@pytest.mark.parametrize(("first_step", "expected"), [(0, BEFORE), (30, AFTER)])
def test_begin_writes_the_config_and_keeps_the_rollbacks_of_a_resumed_run(
    tmp_path, first_step, expected
):
    config = make_config()
    resume.record_rollback(str(tmp_path), 30, AFTER)
    resume.begin_workdir(str(tmp_path), config, first_step)
    assert workdir_lib.read_config(str(tmp_path)) == config
    assert resume.with_rollback(str(tmp_path), 30, BEFORE) == expected


@pytest.mark.parametrize(
    ("step", "position", "expected"),
    [
        (30, BEFORE, AFTER),  # from before the rollback
        (20, BEFORE, AFTER),  # 30 may be corrupt by then
        (40, LATER, LATER),  # from after the rollback
        (40, BEFORE, BEFORE),  # of an undone step, maybe restored from a backup
    ],
)
def test_a_checkpoint_from_before_the_rollback_gets_its_skips(
    tmp_path, step, position, expected
):
    assert resume.with_rollback(str(tmp_path), step, position) == position
    resume.record_rollback(str(tmp_path), 30, AFTER)
    assert resume.with_rollback(str(tmp_path), step, position) == expected


@pytest.mark.parametrize("text", ["{", "[]", '{"step": 30}', '{"step": null}'])
def test_a_corrupt_record_is_named(tmp_path, text):
    (tmp_path / resume.ROLLBACK_FILE).write_text(text)
    with pytest.raises(CorruptError, match=r"rollback\.json is corrupt"):
        resume.with_rollback(str(tmp_path), 30, BEFORE)


def test_a_run_rolls_back_at_most_max_rollbacks_times(tmp_path):
    config = make_config(phase={"num_steps": 5}, guard__max_rollbacks=1)
    second = dataclasses.replace(config.phases[0], num_steps=4)
    config = dataclasses.replace(config, phases=(config.phases[0], second))
    error = DivergedError(7, "not finite")
    newest, found = 0, []

    def recover(name, on_found):
        if newest:
            on_found(newest)
            found.append(resume.with_rollback(str(tmp_path), newest, BEFORE))
        return newest

    checkpoints = SimpleNamespace(wait=lambda: None, recover=recover)

    def roll_back(position):
        return resume.roll_back(config, str(tmp_path), checkpoints, position, error)

    with pytest.raises(DivergedError):  # there is no checkpoint
        roll_back(BEFORE)
    newest = 4
    step, position = roll_back(BEFORE)
    assert step == 4 and position.rollbacks == 1
    assert position.skips == (Skip(0, 4, 1), Skip(1, 0, 2))
    assert found == [position]  # recorded before a checkpoint is moved
    with pytest.raises(DivergedError):
        roll_back(position)
