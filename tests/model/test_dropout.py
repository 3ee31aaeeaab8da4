"""Tests of dropout: its rate, and its dependence on seed and index only."""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.ops import dropout
from tests.conftest import use_mesh

F32 = jnp.dtype(jnp.float32)


def test_dropout_zeroes_its_rate_and_scales_the_rest():
    x = jnp.ones((64, 32, 128))
    y = dropout(x, 0.1, jnp.array([3, 4], jnp.uint32))
    share = float(jnp.mean((y == 0).astype(F32)))
    assert abs(share - 0.1) < 4 * np.sqrt(0.1 * 0.9 / x.size)
    np.testing.assert_allclose(np.unique(y), [0, 1 / 0.9], rtol=1e-6)
    # Neighbours along each dim are dropped together no more often than by chance.
    for axis in range(3):
        same = float(jnp.mean(((y == 0) & (jnp.roll(y, 1, axis) == 0)).astype(F32)))
        assert abs(same - 0.01) < 5e-4


def test_dropout_depends_on_the_seed_and_not_on_the_mesh():
    seeds = np.array([[3, 4], [3, 5], [4, 4]], np.uint32)
    one, other, third = (
        np.asarray(dropout(jnp.ones((8, 4, 16)), 0.5, jnp.asarray(seed)))
        for seed in seeds
    )
    assert not np.array_equal(one, other) and not np.array_equal(one, third)
    mesh = use_mesh(2, 2, 2)
    x = jax.device_put(
        np.ones((8, 4, 16), np.float32),
        jax.NamedSharding(mesh, jax.P(("data", "fsdp"), None, "tensor")),
    )
    split = jax.jit(lambda x, s: dropout(x, 0.5, s))(x, seeds[0])
    np.testing.assert_array_equal(split, one)


def test_dropout_without_seed_or_at_rate_0_is_the_identity():
    x = jnp.ones((2, 3))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jnp.zeros(2, jnp.uint32)) is x
