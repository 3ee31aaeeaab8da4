"""Inputs of attention, and the einsums, for tests of the kernels."""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.distributed import sharding
from bert_jax.model import attention
from bert_jax.model.dropout import Seed, row_indices
from tests.conftest import use_mesh

B, T, D = 4, 128, 256
SEED = np.array([5, 6], np.uint32)
ATTEND = ("context", "query", "key", "value")


def inputs(num_pairs=3, rows=B, length=T):
    """Returns q, k, v and the gradient, bfloat16[rows, length, D], and ids of pairs."""
    random = np.random.default_rng(0)
    arrays = random.normal(size=(4, rows, length, D))
    ids_BT = np.sort(random.integers(1, num_pairs + 1, (rows, length)), axis=1)
    ids_BT[:, -9:] = 0
    return *jnp.asarray(arrays, jnp.bfloat16), jnp.asarray(ids_BT, jnp.int32)


def by_einsums(q, k, v, ids, seed, head_dim=64, rate=0.1, order=1):
    num_heads = D // head_dim
    return attention.attention((q, k, v), ids[:, ::order], ids, num_heads, rate, seed)


def with_gradients(attend, *arrays, **options):
    """Returns the context and the gradients of q, k and v on the mesh, as float32."""
    *arrays, words = arrays
    dims = ("batch", "seq", "heads")
    arrays = [
        jax.device_put(
            x,
            jax.NamedSharding(jax.sharding.get_mesh(), sharding.spec(*dims[: x.ndim])),
        )
        for x in arrays
    ]
    seed = None if words is None else Seed(words, row_indices(len(arrays[0])))

    @jax.jit
    def compute(q, k, v, gradient, ids, seed):
        context, vjp = jax.vjp(lambda *x: attend(*x, ids, seed, **options), q, k, v)
        return context, *vjp(gradient)

    return [np.asarray(x, np.float32) for x in compute(*arrays, seed)]


def assert_equal_to_einsums(by_kernel, arrays, ids, rate, **options):
    q, k, v, gradient = arrays
    is_real = np.asarray(ids)[:, :, None] > 0
    # Nothing reads the context of padding.
    arrays = q, k, v, jnp.where(is_real, gradient, jnp.zeros_like(gradient))
    seed = jnp.asarray(SEED) if rate else None
    found = with_gradients(by_kernel, *arrays, ids, seed, rate=rate, **options)
    exact = [x.astype(jnp.float32) for x in arrays]
    expected = with_gradients(by_einsums, *exact, ids, seed, rate=rate, **options)
    for name, x, y in zip(ATTEND, found, expected, strict=True):
        error = np.linalg.norm((x - y) * is_real) / np.linalg.norm(y * is_real)
        assert error < 5e-3, name  # bfloat16 has 8 significant bits
        assert np.isfinite(x).all(), name


def assert_other_pairs_change_no_bit(by_kernel):
    q, k, v, gradient, ids = inputs(rows=2)
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


def assert_close(found, expected, error):
    """Asserts that the relative error of each array is at most `error`."""
    for name, x, y in zip(ATTEND, found, expected, strict=True):
        assert np.linalg.norm(x - y) <= error * np.linalg.norm(y), name


def assert_same_on_mesh(by_kernel, mesh_shape, length=T, error=0.0):
    """Each device drops the probabilities of its own rows and heads."""
    *arrays, ids = inputs(length=length)
    use_mesh(1, 1, 1)
    expected = with_gradients(by_kernel, *arrays, ids, jnp.asarray(SEED))
    use_mesh(*mesh_shape)
    found = with_gradients(by_kernel, *arrays, ids, jnp.asarray(SEED))
    assert_close(found, expected, error)
