"""The record of a rollback applies exactly where no checkpoint has its skips."""

import pytest

from bert_jax.errors import CorruptError
from bert_jax.phases import Position, Skip
from bert_jax.training import rollbacks

BEFORE = Position("corpus", log=({"loss": 1.0},))
AFTER = Position("corpus", (Skip(0, 30, 8),), rollbacks=1)


def test_without_a_record_the_position_is_that_of_the_checkpoint(tmp_path):
    assert rollbacks.resumed(str(tmp_path), 30, BEFORE) == BEFORE


@pytest.mark.parametrize("step", [20, 30])  # 30 may be corrupt by then
def test_a_checkpoint_from_before_the_rollback_gets_its_skips(tmp_path, step):
    rollbacks.write(str(tmp_path), 30, AFTER)
    found = rollbacks.resumed(str(tmp_path), step, BEFORE)
    assert found == Position("corpus", AFTER.skips, 1, BEFORE.log)


def test_a_checkpoint_from_after_the_rollback_keeps_its_own(tmp_path):
    rollbacks.write(str(tmp_path), 30, AFTER)
    later = Position("corpus", (*AFTER.skips, Skip(1, 0, 2)), rollbacks=1)
    assert rollbacks.resumed(str(tmp_path), 40, later) == later


def test_a_checkpoint_of_the_undone_steps_keeps_its_own(tmp_path):
    """Restored from a copy, for example."""
    rollbacks.write(str(tmp_path), 30, AFTER)
    assert rollbacks.resumed(str(tmp_path), 40, BEFORE) == BEFORE


def test_a_run_from_step_0_has_no_record(tmp_path):
    rollbacks.clear(str(tmp_path))
    rollbacks.write(str(tmp_path), 30, AFTER)
    rollbacks.clear(str(tmp_path))
    assert rollbacks.resumed(str(tmp_path), 10, BEFORE) == BEFORE


@pytest.mark.parametrize("text", ["{", "[]", '{"step": 30}', '{"step": null}'])
def test_a_corrupt_record_is_named(tmp_path, text):
    (tmp_path / rollbacks.ROLLBACK_FILE).write_text(text)
    with pytest.raises(CorruptError, match=r"rollback\.json is corrupt"):
        rollbacks.resumed(str(tmp_path), 30, BEFORE)
