"""Tests of the replays of bert_jax.training.stepper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import CorruptError
from bert_jax.training import compilation, optimizer, stepper
from bert_jax.training import step as step_lib
from tests.conftest import make_batch, make_config, use_mesh


@pytest.mark.slow
def test_a_repeated_step_gives_the_same_bits():
    config = make_config(model__hidden_dropout_prob=0.1)
    use_mesh(2, 1, 2)
    tx, schedule = optimizer.make_optimizer(config)
    graphdef, init = step_lib.init_state(config, tx)
    train_step = step_lib.make_train_step(config, graphdef, tx, schedule)
    state = init()
    with jax.numpy_dtype_promotion("standard"):  # optax: int32 counts times floats
        replayed = compilation.jit(train_step, donates_state=False)
        stepper.replay(replayed, 3, state, make_batch(config))
    jax.block_until_ready(state)  # it was not donated


def test_an_array_with_a_different_bit_is_named():
    """The second result has a flipped bit, as if a chip had computed it wrong."""
    weights = {"a": jnp.arange(4.0), "b": {"c": jnp.ones(3)}}
    flipped = np.arange(4.0, dtype=np.float32)
    flipped.view(np.uint32)[2] ^= 1  # the last bit of the mantissa
    answers = [weights, {**weights, "a": jnp.asarray(flipped)}]
    with pytest.raises(CorruptError, match="step 7 .* 1 arrays differ: a., so a chip"):
        stepper.replay(lambda state, batch: answers.pop(0), 7, None, None)


def differing(a, b):
    return stepper.differing_arrays({"x": a}, {"x": b})


def test_bits_are_compared_not_values():
    nan = jnp.array([np.nan, 1.0])
    assert differing(nan, nan) == []
    assert differing(jnp.zeros(2), -jnp.zeros(2)) == ["x"]
    assert differing(jnp.arange(3), jnp.arange(3) + 1) == ["x"]


def test_each_copy_of_a_replicated_array_is_compared():
    """The copy on one device may be wrong."""
    mesh = use_mesh(4, 1, 1)
    layout = jax.NamedSharding(mesh, jax.P())
    good = np.ones(3, np.float32)

    def copies(of_last):
        values = [good] * 3 + [of_last]
        devices = mesh.devices.ravel()
        arrays = [jax.device_put(v, d) for v, d in zip(values, devices, strict=True)]
        return jax.make_array_from_single_device_arrays((3,), layout, arrays)

    assert differing(copies(good), copies(good)) == []
    assert differing(copies(good), copies(good + 1)) == ["x"]
