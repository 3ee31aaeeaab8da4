"""The attention kernels, emulated on the CPU, against the einsums."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import MeshConfig
from bert_jax.distributed import chips, sharding
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.model.dropout import Seed, row_indices
from bert_jax.model.kernels import attention_tpu
from tests.conftest import slow
from tests.model.attention_inputs import (
    SEED,
    T,
    assert_equal_to_einsums,
    assert_other_pairs_change_no_bit,
    assert_same_on_mesh,
    by_einsums,
    inputs,
    with_gradients,
)

ONE = MeshConfig(data=1, fsdp=1, tensor=1, shard_optimizer=False)


def by_kernel(q, k, v, ids, seed, head_dim=64, rate=0.1, order=1):
    """The queries are those of the row in its order, or backwards (-1)."""
    options = attention_tpu.Options(head_dim, rate, interpret=True)
    return attention_tpu.attend(q, k, v, ids[:, ::order], ids, seed, options)


@pytest.mark.parametrize(
    "head_dim", [n if n == 64 else slow(n) for n in attention_tpu.HEAD_DIMS]
)
@pytest.mark.parametrize("rate", [slow(0.0), 0.1])
def test_kernels_equal_einsums(head_dim, rate):
    *arrays, ids = inputs()
    assert_equal_to_einsums(by_kernel, arrays, ids, rate, head_dim=head_dim)


def test_queries_may_be_other_positions_than_the_keys():
    *arrays, ids = inputs(num_pairs=1)
    args = (*arrays, ids, jnp.asarray(SEED))
    found = with_gradients(by_kernel, *args, order=-1)
    expected = with_gradients(by_einsums, *args, order=-1)
    for x, y in zip(found, expected, strict=True):
        assert np.linalg.norm(x - y) < 0.01 * np.linalg.norm(y)


def test_other_pairs_and_padding_change_no_bit():
    assert_other_pairs_change_no_bit(by_kernel)


@pytest.mark.slow
@pytest.mark.parametrize("mesh_shape", [(2, 2, 1), (1, 2, 2)])
def test_context_and_gradients_are_the_same_on_every_mesh(mesh_shape):
    assert_same_on_mesh(by_kernel, mesh_shape)


@pytest.mark.slow
def test_rows_are_dropped_independently():
    q, k, v, _, _ = (x[:1] for x in inputs())
    q, k, v = (jnp.tile(x, (2, 1, 1)) for x in (q, k, v))
    ids = jnp.ones((2, T), jnp.int32)
    rows = row_indices(2)
    found = by_kernel(q, k, v, ids, Seed(jnp.asarray(SEED), rows))
    assert not np.array_equal(found[0], found[1])
    other = by_kernel(q, k, v, ids, Seed(jnp.asarray(SEED + 1), rows))
    assert not np.array_equal(found, other)


@pytest.mark.libtpu
@pytest.mark.parametrize("head_dim", attention_tpu.HEAD_DIMS)
def test_the_compiler_of_tpus_accepts_the_kernels(head_dim):
    mesh = mesh_lib.make_mesh(ONE, chips.devices("v5e:2x2")[:1])

    def both(q, k, v, ids, words):
        options = attention_tpu.Options(head_dim, 0.1)
        attend = functools.partial(attention_tpu.attend, options=options)
        rest = ids, ids, Seed(words, row_indices(1))
        context, vjp = jax.vjp(lambda *x: attend(*x, *rest), q, k, v)
        return context, vjp(context)

    def array(shape, dtype, *dims):
        layout = jax.NamedSharding(mesh, sharding.spec(*dims))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=layout)

    x = array((1, T, 128), jnp.bfloat16, "batch", "seq", "heads")
    ids = array((1, T), jnp.int32, "batch", "seq")
    words = array((2,), jnp.uint32, "replicated")
    with jax.set_mesh(mesh):
        text = jax.jit(both).lower(x, x, x, ids, words).compile().as_text()
    assert text.count("tpu_custom_call") >= 2  # forward and backward
