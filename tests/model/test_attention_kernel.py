"""The attention kernels, emulated on the CPU, against the einsums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.distributed import sharding
from bert_jax.model import attention, attention_kernel
from tests.conftest import use_mesh

B, T, D = 4, 128, 256
SEED = np.array([5, 6], np.uint32)
ATTEND = ("context", "query", "key", "value")


def inputs(num_pairs=3, rows=B):
    """Returns q, k, v and the gradient, bfloat16[B, T, D], and the ids of pairs."""
    random = np.random.default_rng(0)
    arrays = random.normal(size=(4, rows, T, D))
    ids_BT = np.sort(random.integers(1, num_pairs + 1, (rows, T)), axis=1)
    ids_BT[:, -9:] = 0
    return *jnp.asarray(arrays, jnp.bfloat16), jnp.asarray(ids_BT, jnp.int32)


def by_kernel(q, k, v, ids, seed, head_dim=64, rate=0.1, order=1):
    """The queries are those of the row in its order, or backwards (-1)."""
    options = attention_kernel.Options(head_dim, rate, interpret=True)
    return attention_kernel.attend(q, k, v, ids[:, ::order], ids, seed, options)


def by_einsums(q, k, v, ids, seed, head_dim=64, rate=0.1, order=1):
    num_heads = D // head_dim
    return attention.attention(q, k, v, ids[:, ::order], ids, num_heads, rate, seed)


def with_gradients(attend, *arrays, **options):
    """Returns the context and the gradients of q, k and v on the mesh, as float32."""
    *arrays, seed = arrays
    dims = ("batch", "seq", "heads")
    arrays = [
        jax.device_put(
            x,
            jax.NamedSharding(jax.sharding.get_mesh(), sharding.spec(*dims[: x.ndim])),
        )
        for x in arrays
    ]

    @jax.jit
    def compute(q, k, v, gradient, ids, seed):
        context, vjp = jax.vjp(lambda *x: attend(*x, ids, seed, **options), q, k, v)
        return context, *vjp(gradient)

    return [np.asarray(x, np.float32) for x in compute(*arrays, seed)]


def masked(q, k, v, gradient, ids):
    """Removes the gradient of padding queries, which nothing reads."""
    return q, k, v, jnp.where(ids[:, :, None] > 0, gradient, jnp.zeros_like(gradient))


@pytest.mark.parametrize("head_dim", attention_kernel.HEAD_DIMS)
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
