"""Tests of bert_jax.checkpoint.manager."""

import collections
import errno
import functools
import os
import shutil
import threading
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import LatestN

from bert_jax.checkpoint import integrity
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.errors import ConfigError, CorruptError, StorageError
from bert_jax.phases import Position, Skip
from bert_jax.training import step as step_lib
from bert_jax.training.saver import Ranking, preservation
from tests.conftest import make_config, slow, use_mesh

small_config = functools.partial(make_config, model__num_hidden_layers=1)


def new_state(config):
    """Returns a function that initializes a state."""
    _, init = step_lib.init_state(config)
    return init


@functools.cache
def state_of(config):
    """Returns an initial state on one device, which tests share."""
    use_mesh(1, 1, 1)
    return new_state(config)()


def test_restored_state_equals_the_saved_one_on_any_mesh(tmp_path):
    config = small_config()
    use_mesh(4, 1, 1)
    position = Position("corpus", (Skip(0, 4, 3), Skip(1, 0, 2)), rollbacks=1)
    state = new_state(config)()
    checkpoints = Checkpoints(str(tmp_path), LatestN(3))
    checkpoints.save(7, state, config, position)
    checkpoints.close()
    mesh = use_mesh(2, 2, 2)
    checkpoints = Checkpoints(str(tmp_path))
    assert checkpoints.steps() == [7]
    restored = checkpoints.restore(7, jax.eval_shape(new_state(config)), mesh)
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert a.dtype == b.dtype and a.sharding.mesh == mesh
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ConfigError, match="was not trained on the corpus"):
        checkpoints.position(7, "another")
    assert checkpoints.position(7, "corpus") == position


def test_saves_do_not_query_the_preemption_service(tmp_path, monkeypatch):
    """A query with another step would lose a preemption notice, see manager.py."""
    queries = []
    monkeypatch.setattr(
        multihost_utils,
        "reached_preemption_sync_point",
        lambda step: queries.append(step),
    )
    save_all(tmp_path, small_config(), {1: None, 2: None})
    assert not queries


def test_parameters_are_restored_for_another_optimizer(tmp_path):
    config = small_config()
    save_all(tmp_path, config, {1: None})
    other = small_config(optimizer__mu_dtype="bfloat16")
    like = {"params": jax.eval_shape(new_state(other)).params}
    restored = Checkpoints(str(tmp_path)).restore(1, like, use_mesh(1, 1, 1))
    assert restored.keys() == {"params"}
    expected = state_of(config).params
    jax.tree.map(np.testing.assert_array_equal, restored["params"], expected)


def test_another_dtype_is_an_error_and_not_cast(tmp_path):
    """Orbax would cast silently."""
    config = small_config()
    save_all(tmp_path, config, {1: None})
    other = small_config(optimizer__mu_dtype="bfloat16")
    like = jax.eval_shape(new_state(other))
    with pytest.raises(ConfigError, match="checkpoint float32.*, config bfloat16"):
        Checkpoints(str(tmp_path)).restore(1, like, use_mesh(1, 1, 1))


def test_a_checkpoint_of_another_model_is_an_error_that_lists_arrays(tmp_path):
    save_all(tmp_path, small_config(), {1: None})
    other = small_config(model__intermediate_size=128)
    with pytest.raises(
        ConfigError,
        match=r"layers\.0\.intermediate\.bias: checkpoint float32\[64\],"
        r" config float32\[128\]",
    ):
        Checkpoints(str(tmp_path)).restore(
            1, jax.eval_shape(new_state(other)), use_mesh(1, 1, 1)
        )


def save_all(workdir, config, losses, ranking=None) -> None:
    """Saves a state for each step of `losses`, after an evaluation if it has one."""
    state, ranking = state_of(config), ranking or Ranking(0)
    checkpoints = Checkpoints(str(workdir), preservation(config.checkpoint, ranking))
    for step, loss in losses.items():
        if loss is not None:
            ranking.add(step, 0, {"eval_loss": loss})
        checkpoints.save(step, state, config, Position("corpus"))
    checkpoints.close()


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        slow({"checkpoint__keep": 2, "checkpoint__keep_every_steps": 2}, [2, 4, 5, 6]),
        ({"checkpoint__keep": 1, "checkpoint__keep_steps": (1, 5)}, [1, 5, 6]),
        ({"checkpoint__keep": 1, "checkpoint__keep_best": 2}, [2, 3, 6]),
    ],
)
def test_old_checkpoints_are_deleted_as_the_config_says(tmp_path, changes, kept):
    config = small_config(**changes)
    losses = {1: 5.0, 2: 2.0, 3: 1.0, 4: 3.0, 5: None, 6: 4.0}
    ranking = Ranking(config.checkpoint.keep_best)
    for steps_saved in ((1, 2, 3), (4, 5, 6)):  # in two calls
        save_all(tmp_path, config, {s: losses[s] for s in steps_saved}, ranking)
    assert Checkpoints(str(tmp_path)).steps() == kept


def test_digests_are_written_before_the_commit(tmp_path, monkeypatch):
    """A committed checkpoint has digests at any time."""
    config = small_config()
    state = state_of(config)
    checkpoints = Checkpoints(str(tmp_path), LatestN(3))
    monkeypatch.setattr(integrity, "seal", lambda directory: None)
    checkpoints.save(1, state, config, Position("corpus"))
    checkpoints.wait()
    assert integrity.verify(str(tmp_path), 1) == ["SHA256SUMS is missing"]

    def fail(directory):
        raise RuntimeError(f"no digests for {os.path.basename(directory)}")

    monkeypatch.setattr(integrity, "seal", fail)
    checkpoints.save(2, state, config, Position("corpus"))
    with pytest.raises(RuntimeError, match="no digests for 2"):
        checkpoints.close()
    assert integrity.steps(str(tmp_path)) == [1]


def test_a_full_disk_is_an_error_with_the_needed_bytes(tmp_path, monkeypatch):
    config = small_config()
    save_all(tmp_path, config, {1: None})
    stale = tmp_path / "checkpoints" / f"2{integrity.UNFINISHED}"
    checkpoints = Checkpoints(str(tmp_path), LatestN(3))
    stale.mkdir()
    used = collections.namedtuple("used", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: used(10**9, 10**9, 4096))
    with pytest.raises(ConfigError, match="step 3 .* needs [0-9,]+ bytes, and 4,096"):
        checkpoints.save(3, state_of(config), config, Position("corpus"))
    assert not stale.exists()  # removed to free space
    assert integrity.verify(str(tmp_path), 1) == []


def tensorstore_error(number: int) -> ValueError:
    """Returns an error with the text of tensorstore 0.1.84 for a system error."""
    return ValueError(f"FAILED: Error writing [os_error_code='{number}'] [path='x']")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError(errno.ENOSPC, "full"), ConfigError, "step 2 cannot be .* are free"),
        (tensorstore_error(errno.EDQUOT), ConfigError, "the quota is used up; earlier"),
        (tensorstore_error(errno.ESTALE), StorageError, "step 2 is not saved in .*"),
        (RuntimeError("ours"), RuntimeError, "ours"),
    ],
)
def test_a_background_save_that_fails_raises_and_deletes_nothing(
    tmp_path, monkeypatch, error, kind, message
):
    config = small_config()
    real = ocp.CheckpointManager._wait_for_checkpointers

    has_failed = threading.Event()

    def wait(self):
        has_failed.wait()
        time.sleep(0.2)  # the training loop asks for errors before Orbax's own thread
        real(self)

    def fail(directory):
        has_failed.set()
        raise error

    checkpoints = Checkpoints(str(tmp_path), LatestN(1))
    checkpoints.save(1, state_of(config), config, Position("corpus"))
    checkpoints.wait()
    monkeypatch.setattr(ocp.CheckpointManager, "_wait_for_checkpointers", wait)
    monkeypatch.setattr(integrity, "seal", fail)
    checkpoints.save(2, state_of(config), config, Position("corpus"))
    with pytest.raises(kind, match=message):
        while True:
            time.sleep(0.01)
            checkpoints.check_for_errors()
    with pytest.raises(kind, match=message):
        checkpoints.wait()
    ending = checkpoints._manager._finalize_thread.get_not_none()
    threading.Thread.join(ending)  # Orbax's own raises the error
    assert integrity.verify(str(tmp_path), 1) == []


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (tensorstore_error(errno.EIO), StorageError, "storage failed"),
        (OSError(errno.EACCES, "not allowed"), PermissionError, "not allowed"),
        (TypeError("another form"), CorruptError, "cannot be read .*another form"),
    ],
)
def test_a_read_error_does_not_suggest_removing_the_checkpoint(
    tmp_path, monkeypatch, error, kind, message
):
    """The files match their digests."""
    config = small_config()
    save_all(tmp_path, config, {1: None})
    checkpoints = Checkpoints(str(tmp_path))

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(checkpoints._manager, "restore", fail)
    with pytest.raises(kind, match=message) as raised:
        checkpoints.position(1)
    assert "remove" not in str(raised.value)
