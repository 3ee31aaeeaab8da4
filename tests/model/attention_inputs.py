"""Inputs of attention, and the einsums, for tests of the kernels."""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.distributed import sharding
from bert_jax.model import attention

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
