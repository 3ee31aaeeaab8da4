"""A checkpoint gives back every bit, on any mesh, and says what does not fit."""

import jax
import numpy as np
import pytest

from bert_jax import optim, steps
from bert_jax.checkpoint import Checkpoints
from bert_jax.config import ConfigError
from tests.conftest import make_config, use_mesh


def new_state(config):
    tx, _ = optim.make_optimizer(config)
    _, init = steps.init_state(config, tx)
    return init


@pytest.mark.parametrize("mesh_shape", [(1, 1, 1), (2, 2, 2)])
def test_restored_state_is_the_saved_one_on_any_mesh(tmp_path, mesh_shape):
    config = make_config()
    use_mesh(4, 1, 1)
    state = new_state(config)()
    checkpoints = Checkpoints(str(tmp_path), config.checkpoint)
    checkpoints.save(7, state, config, "corpus")
    checkpoints.close()
    mesh = use_mesh(*mesh_shape)
    checkpoints = Checkpoints(str(tmp_path))
    assert checkpoints.steps() == [7]
    restored = checkpoints.restore(7, jax.eval_shape(new_state(config)), mesh)
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert a.dtype == b.dtype and a.sharding.mesh == mesh
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ConfigError, match="trained on another corpus"):
        checkpoints.check_corpus(7, "another")
    checkpoints.check_corpus(7, "corpus")


def test_weights_come_alone_whatever_the_optimizer(tmp_path):
    config = make_config()
    state = new_state(config)()
    checkpoints = Checkpoints(str(tmp_path), config.checkpoint)
    checkpoints.save(1, state, config, "corpus")
    checkpoints.close()
    other = make_config(optimizer__mu_dtype="bfloat16")
    like = {"params": jax.eval_shape(new_state(other)).params}
    restored = Checkpoints(str(tmp_path)).restore(1, like, use_mesh(1, 1, 1))
    assert restored.keys() == {"params"}
    for a, b in zip(
        jax.tree.leaves(restored["params"]),
        jax.tree.leaves(state.params),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_a_checkpoint_of_another_model_is_a_table(tmp_path):
    config = make_config()
    checkpoints = Checkpoints(str(tmp_path), config.checkpoint)
    checkpoints.save(1, new_state(config)(), config, "corpus")
    checkpoints.close()
    other = make_config(model__intermediate_size=128)
    with pytest.raises(
        ConfigError,
        match=r"layers\.0\.intermediate\.bias: checkpoint float32\[64\],"
        r" config float32\[128\]",
    ):
        Checkpoints(str(tmp_path)).restore(
            1, jax.eval_shape(new_state(other)), use_mesh(1, 1, 1)
        )


def test_old_checkpoints_go(tmp_path):
    config = make_config(checkpoint__keep=2)
    state = new_state(config)()
    checkpoints = Checkpoints(str(tmp_path), config.checkpoint)
    for step in (1, 2, 3):
        checkpoints.save(step, state, config, "corpus")
    checkpoints.close()
    assert Checkpoints(str(tmp_path)).steps() == [2, 3]
