"""Tests of bert_jax.model.dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.dropout import Seed, dropout, keep, row_indices
from tests.conftest import use_mesh


def seed_of(*words, rows=range(8)):
    return Seed(jnp.array(words, jnp.uint32), jnp.array([*rows]))


def test_dropout_zeroes_its_rate_and_scales_the_rest():
    x = jnp.ones((64, 32, 128))
    y = dropout(x, 0.1, seed_of(3, 4, rows=range(64)))
    share = float(jnp.mean((y == 0).astype(jnp.float32)))
    assert abs(share - 0.1) < 4 * np.sqrt(0.1 * 0.9 / x.size)
    np.testing.assert_allclose(np.unique(y), [0, 1 / 0.9], rtol=1e-6)
    # Neighbours along each dim are dropped together no more often than by chance.
    for axis in range(3):
        same = float(
            jnp.mean(((y == 0) & (jnp.roll(y, 1, axis) == 0)).astype(jnp.float32))
        )
        assert abs(same - 0.01) < 5e-4


def test_dropout_depends_on_the_seed_and_not_on_the_mesh():
    one, other, third = (
        np.asarray(dropout(jnp.ones((8, 4, 16)), 0.5, seed_of(*words)))
        for words in ((3, 4), (3, 5), (4, 4))
    )
    assert not np.array_equal(one, other) and not np.array_equal(one, third)
    mesh = use_mesh(2, 2, 2)
    x = jax.device_put(
        np.ones((8, 4, 16), np.float32),
        jax.NamedSharding(mesh, jax.P(("data", "fsdp"), None, "tensor")),
    )
    seed = Seed(jnp.array([3, 4], jnp.uint32), row_indices(8))
    split = jax.jit(lambda x, seed: dropout(x, 0.5, seed))(x, seed)
    np.testing.assert_array_equal(split, one)


@pytest.mark.parametrize(
    ("shape", "bits"), [((4, 2, 3), "f93093"), ((4, 2, 2, 2), "f404fad3")]
)
def test_dropout_keeps_the_same_elements_in_every_version(shape, bits):
    """A run that is resumed with another version of this program stays the same."""
    kept = keep(jnp.ones(shape), 0.5, seed_of(3, 4, rows=range(4)))
    assert np.packbits(np.asarray(kept, bool)).tobytes().hex() == bits


@pytest.mark.parametrize("shape", [(8, 4, 16), (8, 3, 4, 4)])
def test_rows_of_a_microbatch_are_dropped_as_in_the_whole_batch(shape):
    x, rows = jnp.ones(shape), [2, 6]
    whole = dropout(x, 0.5, seed_of(3, 4))
    part = dropout(x[jnp.array(rows)], 0.5, seed_of(3, 4, rows=rows))
    np.testing.assert_array_equal(part, whole[jnp.array(rows)])


def test_dropout_without_seed_or_at_rate_0_is_the_identity():
    x = jnp.ones((2, 3))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, seed_of(0, 0, rows=range(2))) is x
