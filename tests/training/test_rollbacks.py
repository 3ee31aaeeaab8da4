"""Tests of bert_jax.training.rollbacks."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import errors
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.inspect_batch import rows
from bert_jax.phases import Position, Skip
from bert_jax.training import rollbacks
from tests import corpora
from tests.conftest import make_config, two_phases, use_mesh

POSITION = Position("corpus")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    changes = {"data__num_shards": 4, "data__num_streams": 2, "guard__max_bad_steps": 3}
    return corpora.of_text(tmp_path_factory.mktemp("rollbacks"), **changes)


def step_metrics(bad_steps_in_row):
    value = np.float32(np.nan if bad_steps_in_row else 2.0)
    return {
        "loss": value,
        "masked_lm_loss": value,
        "grad_norm": np.float32(np.inf if bad_steps_in_row else 1.0),
        "bad_steps_in_row": np.int32(bad_steps_in_row),
    }


def test_a_bad_step_is_reported_and_recorded_with_its_rows(made, tmp_path):
    config, corpus = made
    logged = []
    guard = rollbacks.Guard(config, corpus, POSITION, 0, str(tmp_path), logged.append)
    guard.check(3, [step_metrics(n) for n in (0, 0, 0)])
    assert not logged and not list(tmp_path.iterdir())
    guard.check(6, [step_metrics(n) for n in (0, 1, 0)])
    (text,) = logged
    assert text.startswith("step 5 not finite (loss nan, gradient norm inf): update")
    (text,) = (tmp_path / rollbacks.BAD_STEPS_FILE).read_text().splitlines()
    record = json.loads(text, parse_constant=pytest.fail)
    assert (record["step"], record["phase"], record["batch"]) == (5, 0, 4)
    assert (record["loss"], record["grad_norm"]) == ("nan", "inf")
    # The recorded rows are those that inspect_batch shows for this step.
    shown = [
        (row.shard, row.epoch, row.index)
        for row in rows.read_step(corpus, config, 5).rows
    ]
    recorded = [
        (part["shard"], part["epoch"], row)
        for part in record["rows"]
        for row in range(part["first"], part["stop"])
    ]
    assert recorded == shown and len(shown) == 8


def test_too_many_in_a_row_end_the_run(made):
    config, corpus = made
    logged = []
    guard = rollbacks.Guard(config, corpus, POSITION, 0, None, logged.append)
    guard.check(4, [step_metrics(n) for n in (0, 1, 2)])
    assert logged[0].startswith("2 steps not finite")
    with pytest.raises(errors.DivergedError, match="in the last 3 steps, up to step 5"):
        guard.check(7, [step_metrics(n) for n in (3, 4, 5)])
    assert errors.DivergedError.exit_code == 77


def test_diagnose_tells_weights_from_an_overflow():
    good = {"a": jnp.ones(3), "b": {"c": jnp.zeros((2, 2))}}
    reason = rollbacks.diagnose(good, "a run", 7)
    assert reason.startswith("all parameters are finite")
    command = "python -m bert_jax.inspect_batch '--workdir=a run' --step=7"
    assert reason.endswith(f"inspect the rows with: {command}")
    bad = {"a": jnp.ones(3), "b": {"c": jnp.full((2, 2), jnp.nan)}}
    assert rollbacks.diagnose(bad, "run", 7) == "parameters are not finite"


def test_records_of_repeated_steps_are_dropped(made, tmp_path):
    config, corpus = made

    def steps_after(position, first_step):
        rollbacks.Guard(config, corpus, position, first_step, str(tmp_path), print)
        texts = (tmp_path / rollbacks.BAD_STEPS_FILE).read_text().splitlines()
        return [json.loads(text)["step"] for text in texts]

    guard = rollbacks.Guard(config, corpus, POSITION, 0, str(tmp_path), print)
    guard.check(4, [step_metrics(1)])
    guard.check(9, [step_metrics(1)])
    assert steps_after(POSITION, 9) == [4, 9]
    # Records of steps that a rollback undid are kept.
    assert steps_after(Position("corpus", rollbacks=1), 5) == [4, 9]
    assert steps_after(POSITION, 5) == [4]


def test_a_state_that_is_not_finite_is_an_error():
    rows = jax.NamedSharding(use_mesh(2, 1, 1), jax.P("data"))
    matrix = jax.device_put(np.ones((4, 3), np.float32), rows)

    def check(params, moments, average=None):
        moments = (jnp.int32(3), moments)
        state = SimpleNamespace(params=params, opt_state=moments, average=average)
        rollbacks.check_finite(3, state)

    check(matrix, matrix)
    check(matrix, matrix, matrix)
    bad = np.nan * matrix
    for values in ((bad, matrix), (matrix, np.inf * matrix), (matrix, matrix, bad)):
        with pytest.raises(errors.DivergedError, match="not finite, up to step 3"):
            check(*values)


# -------------------------------------------------------------------------- rollbacks

BEFORE = POSITION
AFTER = Position("corpus", (Skip(0, 30, 8),), rollbacks=1)
LATER = Position("corpus", (*AFTER.skips, Skip(1, 0, 2)), rollbacks=1)


@pytest.mark.parametrize(("saved_step", "expected"), [(0, BEFORE), (30, AFTER)])
def test_begin_writes_the_config_and_keeps_the_rollbacks_of_a_resumed_run(
    tmp_path, saved_step, expected
):
    config = make_config()
    rollbacks.record_rollback(str(tmp_path), 30, AFTER)
    workdir_lib.begin(str(tmp_path), config, saved_step)
    assert workdir_lib.read_config(str(tmp_path)) == config
    assert rollbacks.with_rollback(str(tmp_path), 30, BEFORE) == expected


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
    assert rollbacks.with_rollback(str(tmp_path), step, position) == position
    rollbacks.record_rollback(str(tmp_path), 30, AFTER)
    assert rollbacks.with_rollback(str(tmp_path), step, position) == expected


@pytest.mark.parametrize("text", ["{", "[]", '{"step": 30}', '{"step": null}'])
def test_a_corrupt_record_is_named(tmp_path, text):
    (tmp_path / workdir_lib.ROLLBACK_FILE).write_text(text)
    with pytest.raises(errors.CorruptError, match=r"rollback\.json is corrupt"):
        rollbacks.with_rollback(str(tmp_path), 30, BEFORE)


def test_a_run_rolls_back_at_most_max_rollbacks_times(tmp_path):
    config = make_config(phase={"num_steps": 5}, guard__max_rollbacks=1)
    config = two_phases(config, num_steps=4)
    error = errors.DivergedError(7, "not finite")
    newest, found = 0, []

    def recover(name, on_found):
        if newest:
            on_found(newest)
            found.append(rollbacks.with_rollback(str(tmp_path), newest, BEFORE))
        return newest

    checkpoints = SimpleNamespace(wait=lambda: None, recover=recover)

    def roll_back(position):
        return rollbacks.roll_back(config, str(tmp_path), checkpoints, position, error)

    with pytest.raises(errors.DivergedError):  # there is no checkpoint
        roll_back(BEFORE)
    newest = 4
    step, position = roll_back(BEFORE)
    assert step == 4 and position.rollbacks == 1
    assert position.skips == (Skip(0, 4, 1), Skip(1, 0, 2))
    assert found == [position]  # recorded before a checkpoint is moved
    with pytest.raises(errors.DivergedError):
        roll_back(position)
