"""The attention kernels, emulated on the CPU, against the einsums."""

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import attention_kernel_tpu
from tests.conftest import use_mesh
from tests.model.attention_inputs import (
    ATTEND,
    SEED,
    T,
    by_einsums,
    inputs,
    masked,
    with_gradients,
)


def by_kernel(q, k, v, ids, seed, head_dim=64, rate=0.1, order=1):
    """The queries are those of the row in its order, or backwards (-1)."""
    options = attention_kernel_tpu.Options(head_dim, rate, interpret=True)
    return attention_kernel_tpu.attend(q, k, v, ids[:, ::order], ids, seed, options)


@pytest.mark.parametrize("head_dim", attention_kernel_tpu.HEAD_DIMS)
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_kernels_equal_einsums(head_dim, rate):
    *arrays, ids = inputs()
    arrays = masked(*arrays, ids)
    seed = jnp.asarray(SEED) if rate else None
    options = {"head_dim": head_dim, "rate": rate}
    found = with_gradients(by_kernel, *arrays, ids, seed, **options)
    exact = [x.astype(jnp.float32) for x in arrays]
    expected = with_gradients(by_einsums, *exact, ids, seed, **options)
    is_real = np.asarray(ids)[:, :, None] > 0
    for name, x, y in zip(ATTEND, found, expected, strict=True):
        error = np.linalg.norm((x - y) * is_real) / np.linalg.norm(y * is_real)
        assert error < 5e-3, name  # bfloat16 has 8 significant bits


def test_queries_may_be_other_positions_than_the_keys():
    *arrays, ids = inputs(num_pairs=1)
    args = (*arrays, ids, jnp.asarray(SEED))
    found = with_gradients(by_kernel, *args, order=-1)
    expected = with_gradients(by_einsums, *args, order=-1)
    for x, y in zip(found, expected, strict=True):
        assert np.linalg.norm(x - y) < 0.01 * np.linalg.norm(y)


def test_padding_query_attends_to_all_tokens_of_an_unpacked_row():
    *arrays, ids = inputs(num_pairs=1)
    found, *_ = with_gradients(by_kernel, *arrays, ids, None, rate=0.0)
    expected, *_ = with_gradients(by_einsums, *arrays, ids, None, rate=0.0)
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_other_pairs_and_padding_change_no_bit():
    q, k, v, gradient, ids = inputs()
    q, k, v, gradient = masked(q, k, v, gradient, ids)
    is_second = np.asarray(ids)[:, :, None] == 2
    only_second = jnp.where(is_second, gradient, jnp.zeros_like(gradient))
    seed = jnp.asarray(SEED)
    found = with_gradients(by_kernel, q, k, v, only_second, ids, seed)
    others = [jnp.where(is_second, x, jnp.flip(x, 1) * 3) for x in (q, k, v)]
    changed = with_gradients(by_kernel, *others, only_second, ids, seed)
    for x, y in zip(found, changed, strict=True):
        np.testing.assert_array_equal(x * is_second, y * is_second)
    for x in found[1:]:  # and other pairs get no gradient
        np.testing.assert_array_equal(x * ~is_second, 0)


@pytest.mark.parametrize("mesh_shape", [(2, 2, 1), (1, 2, 2)])
def test_context_and_gradients_are_the_same_on_every_mesh(mesh_shape):
    """Each device drops the probabilities of its own rows and heads."""
    *arrays, ids = inputs()
    expected = with_gradients(by_kernel, *arrays, ids, jnp.asarray(SEED))
    use_mesh(*mesh_shape)
    found = with_gradients(by_kernel, *arrays, ids, jnp.asarray(SEED))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_rows_are_dropped_independently():
    q, k, v, _, _ = (x[:1] for x in inputs())
    q, k, v = (jnp.tile(x, (2, 1, 1)) for x in (q, k, v))
    ids = jnp.ones((2, T), jnp.int32)
    found = by_kernel(q, k, v, ids, jnp.asarray(SEED))
    assert not np.array_equal(found[0], found[1])
    other = by_kernel(q, k, v, ids, jnp.asarray(SEED + 1))
    assert not np.array_equal(found, other)
