"""Tests of bert_jax.training.rollbacks."""

import dataclasses
from types import SimpleNamespace

import pytest

from bert_jax.errors import CorruptError, DivergedError
from bert_jax.phases import Position, Skip
from bert_jax.training import rollbacks
from tests.conftest import make_config

BEFORE = Position("corpus")
AFTER = Position("corpus", (Skip(0, 30, 8),), rollbacks=1)


def test_without_a_record_the_position_is_that_of_the_checkpoint(tmp_path):
    assert rollbacks.resumed(str(tmp_path), 30, BEFORE) == BEFORE


@pytest.mark.parametrize("step", [20, 30])  # 30 may be corrupt by then
def test_a_checkpoint_from_before_the_rollback_gets_its_skips(tmp_path, step):
    rollbacks.write(str(tmp_path), 30, AFTER)
    found = rollbacks.resumed(str(tmp_path), step, BEFORE)
    assert found == Position("corpus", AFTER.skips, 1)


def test_a_checkpoint_from_after_the_rollback_keeps_its_own(tmp_path):
    rollbacks.write(str(tmp_path), 30, AFTER)
    later = Position("corpus", (*AFTER.skips, Skip(1, 0, 2)), rollbacks=1)
    assert rollbacks.resumed(str(tmp_path), 40, later) == later


def test_a_checkpoint_of_the_undone_steps_keeps_its_own(tmp_path):
    """It may have been restored from a backup."""
    rollbacks.write(str(tmp_path), 30, AFTER)
    assert rollbacks.resumed(str(tmp_path), 40, BEFORE) == BEFORE


def test_a_run_from_step_0_has_no_record(tmp_path):
    rollbacks.clear(str(tmp_path))
    rollbacks.write(str(tmp_path), 30, AFTER)
    rollbacks.clear(str(tmp_path))
    assert rollbacks.resumed(str(tmp_path), 10, BEFORE) == BEFORE


def test_a_record_of_an_earlier_version_has_no_digest(tmp_path):
    skips = '[{"phase_index": 0, "first_batch": 30, "num_batches": 8}]'
    text = f'{{"step": 30, "rollbacks": 1, "skips": {skips}}}'
    (tmp_path / rollbacks.ROLLBACK_FILE).write_text(text)
    assert rollbacks.resumed(str(tmp_path), 30, BEFORE) == AFTER


@pytest.mark.parametrize("text", ["{", "[]", '{"step": 30}', '{"step": null}'])
def test_a_corrupt_record_is_named(tmp_path, text):
    (tmp_path / rollbacks.ROLLBACK_FILE).write_text(text)
    with pytest.raises(CorruptError, match=r"rollback\.json is corrupt"):
        rollbacks.resumed(str(tmp_path), 30, BEFORE)


def test_a_run_rolls_back_at_most_max_rollbacks_times(tmp_path):
    config = make_config(phase={"num_steps": 5}, guard__max_rollbacks=1)
    second = dataclasses.replace(config.phases[0], num_steps=4)
    config = dataclasses.replace(config, phases=(config.phases[0], second))
    error = DivergedError(7, "not finite")
    newest, found = 0, []

    def recover(name, on_found):
        if newest:
            on_found(newest)
            found.append(rollbacks.resumed(str(tmp_path), newest, BEFORE))
        return newest

    checkpoints = SimpleNamespace(wait=lambda: None, recover=recover)

    def roll_back(position):
        return rollbacks.roll_back(config, str(tmp_path), checkpoints, position, error)

    with pytest.raises(DivergedError):  # there is no checkpoint
        roll_back(BEFORE)
    newest = 4
    step, position = roll_back(BEFORE)
    assert step == 4 and position.rollbacks == 1
    assert position.skips == (Skip(0, 4, 1), Skip(1, 0, 2))
    assert found == [position]  # recorded before a checkpoint is moved
    with pytest.raises(DivergedError):
        roll_back(position)
