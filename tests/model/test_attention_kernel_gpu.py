"""The attention kernels for GPUs, emulated on the CPU, against the einsums."""

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import attention_kernel_gpu
from tests.conftest import use_mesh
from tests.model.attention_inputs import (
    ATTEND,
    SEED,
    assert_other_pairs_change_no_bit,
    assert_same_on_mesh,
    by_einsums,
    inputs,
    masked,
    with_gradients,
)


def by_kernel(q, k, v, ids, seed, head_dim=64, rate=0.1, is_joined=False):
    projections = (jnp.concatenate([q, k, v], axis=-1),) if is_joined else (q, k, v)
    options = attention_kernel_gpu.Options(head_dim, rate, interpret=True)
    return attention_kernel_gpu.attend(projections, ids, ids, seed, options)


# A row of 64 tokens is one block, one of 128 is one block of keys in the backward
# kernel and two in the forward one, and longer ones have several blocks in both.
@pytest.mark.parametrize("length", [64, 128, 192])
@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("is_joined", [False, True])
def test_kernels_equal_einsums(length, rate, is_joined):
    *arrays, ids = inputs(rows=3, length=length)
    ids = ids.at[2].set(0)  # a row of padding only
    arrays = masked(*arrays, ids)
    use_mesh(1, 1, 1)
    seed = jnp.asarray(SEED) if rate else None
    options = {"rate": rate}
    found = with_gradients(
        by_kernel, *arrays, ids, seed, is_joined=is_joined, **options
    )
    exact = [x.astype(jnp.float32) for x in arrays]
    expected = with_gradients(by_einsums, *exact, ids, seed, **options)
    is_real = np.asarray(ids)[:, :, None] > 0
    for name, x, y in zip(ATTEND, found, expected, strict=True):
        error = np.linalg.norm((x - y) * is_real) / np.linalg.norm(y * is_real)
        assert error < 5e-3, name  # bfloat16 has 8 significant bits
        assert np.isfinite(x).all(), name


def test_one_array_of_projections_gives_the_same_bits():
    *arrays, ids = inputs(rows=2)
    use_mesh(1, 1, 1)
    separate = with_gradients(by_kernel, *arrays, ids, jnp.asarray(SEED))
    joined = with_gradients(by_kernel, *arrays, ids, jnp.asarray(SEED), is_joined=True)
    for x, y in zip(separate, joined, strict=True):
        np.testing.assert_array_equal(x, y)


def test_other_pairs_and_padding_change_no_bit():
    use_mesh(1, 1, 1)
    assert_other_pairs_change_no_bit(by_kernel)


@pytest.mark.parametrize("mesh_shape", [(2, 2, 1), (1, 2, 2)])
def test_context_and_gradients_are_the_same_on_every_mesh(mesh_shape):
    assert_same_on_mesh(by_kernel, mesh_shape)
