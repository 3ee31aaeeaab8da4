"""The attention kernels for GPUs, emulated on the CPU, against the einsums."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.kernels import attention_gpu
from tests.conftest import slow, use_mesh
from tests.model.attention_inputs import (
    ATTEND,
    SEED,
    assert_equal_to_einsums,
    assert_other_pairs_change_no_bit,
    assert_same_on_mesh,
    inputs,
    with_gradients,
)

# XLA compiles two emulated programs with different roundings of a few elements to
# bfloat16. Other dropped probabilities are an error of 0.4.
ROUNDING = 1e-4


def by_kernel(q, k, v, ids, seed, head_dim=64, rate=0.1, is_joined=False):
    projections = (jnp.concatenate([q, k, v], axis=-1),) if is_joined else (q, k, v)
    options = attention_gpu.Options(head_dim, rate, interpret=True)
    return attention_gpu.attend(projections, ids, ids, seed, options)


def check(arrays, ids, rate, is_joined=False, **options):
    use_mesh(1, 1, 1)
    attend = functools.partial(by_kernel, is_joined=is_joined)
    ids = ids.at[2].set(0)  # a row of padding only
    assert_equal_to_einsums(attend, arrays, ids, rate, **options)


# A row of 64 tokens is one block, one of 128 is one block of keys in the backward
# kernel and two in the forward one, and longer ones have several blocks in both. The
# dropout of rows whose length is not a power of 2 is computed in another way.
@pytest.mark.parametrize(
    ("length", "rate", "is_joined"),
    [
        (192, 0.1, True),
        slow(64, 0.1, True),
        slow(128, 0.0, True),
        slow(256, 0.1, False),
    ],
)
def test_kernels_equal_einsums(length, rate, is_joined):
    *arrays, ids = inputs(rows=3, length=length)
    check(arrays, ids, rate, is_joined=is_joined)


@pytest.mark.slow
def test_kernels_equal_einsums_for_heads_of_32():
    *arrays, ids = inputs(rows=3, length=256)
    check(arrays, ids, 0.1, head_dim=32)


@pytest.mark.slow
def test_kernels_equal_einsums_for_pairs_in_any_order():
    """A block of another pair, or of padding, is between two blocks of one pair."""
    *arrays, ids = inputs(rows=3, length=512)
    blocks = jnp.asarray([[1, 2, 1, 3], [2, 0, 2, 0], [0, 0, 0, 0]])
    ids = jnp.repeat(blocks, 128, axis=1).at[:, -9:].set(0)
    check(arrays, ids, 0.1)


@pytest.mark.parametrize("size", [64, 128])
def test_ranges_of_blocks_skip_padding_and_other_pairs(size):
    ids = jnp.repeat(jnp.asarray([[1, 1, 2, 0]]), 128, axis=1)
    keys = jnp.where(ids > 0, ids, attention_gpu.PADDING)
    queries = jnp.where(ids > 0, ids, 2)
    share = attention_gpu._share_pairs(keys, 128, queries, size)
    n = 128 // size
    expected = [[0, 2 * n], [0, 2 * n], [2 * n, 4 * n], [0, 0]]
    assert attention_gpu._ranges(share)[0].tolist() == expected


def test_blocks_without_a_common_pair_are_not_read():
    """An operation with an infinite key or value gives NaN, even if it is masked."""
    *arrays, ids = inputs(rows=2, length=512)
    is_second = jnp.arange(512)[None, :] >= 256
    ids = jnp.where(is_second, 2, jnp.ones_like(ids))
    q, k, v, gradient = (
        jnp.where(is_second[:, :, None], jnp.full_like(x, jnp.inf), x) for x in arrays
    )
    use_mesh(1, 1, 1)
    found = with_gradients(by_kernel, q, k, v, gradient, ids, jnp.asarray(SEED))
    for name, x in zip(ATTEND, found, strict=True):
        assert np.isfinite(x[:, :256]).all(), name
        assert not np.isfinite(x[:, 256:]).any(), name


def test_other_pairs_and_padding_change_no_bit():
    use_mesh(1, 1, 1)
    assert_other_pairs_change_no_bit(by_kernel)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh_shape", "length"), [((1, 2, 2), 128), ((2, 2, 1), 256)])
def test_context_and_gradients_are_the_same_on_every_mesh(mesh_shape, length):
    assert_same_on_mesh(by_kernel, mesh_shape, length, ROUNDING)
