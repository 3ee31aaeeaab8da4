"""Dropout by a hash: nothing random is kept, and no mesh changes what is dropped."""

import jax
import jax.numpy as jnp


@jax.named_scope("dropout")
def dropout(x: jax.Array, rate: float, seed: jax.Array | None) -> jax.Array:
    """Zeroes a fraction `rate` of x and scales the rest; `seed` None keeps all.

    The decision for an element is a hash of its index and of `seed` (uint32[2]), so
    it is the same on every mesh, needs no random bits in memory, and is computed
    again where the gradient needs it instead of being kept.
    """
    if seed is None or rate == 0.0:
        return x
    spec = jax.typeof(x).sharding.spec

    def index(dim: int) -> jax.Array:
        return jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim, out_sharding=spec)

    # Two words, so that no tensor is too large for a 32-bit counter.
    half = x.ndim // 2
    high, low = jnp.uint32(0), jnp.uint32(0)
    for dim in range(half):
        high = high * jnp.uint32(x.shape[dim]) + index(dim)
    for dim in range(half, x.ndim):
        low = low * jnp.uint32(x.shape[dim]) + index(dim)
    bits = mix32(low ^ mix32(high ^ seed[0]) ^ seed[1])
    keep = bits >= jnp.uint32(round(rate * 2**32))
    scaled = x * jnp.asarray(1.0 / (1.0 - rate), x.dtype)
    return jnp.where(keep, scaled, jnp.zeros_like(x))


def mix32(x: jax.Array) -> jax.Array:
    """Returns a bijective 32-bit hash whose output bits each depend on every input bit.

    Source: the multipliers are the "lowbias32" pair found by C. Wellons' search
    (hash-prospector), bias 0.17.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
