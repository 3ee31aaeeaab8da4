"""Dropout by a hash of the element's index, which stores no mask.

The index of a row is that in the whole batch of a step, so an element is dropped or
kept on every mesh and for any number of microbatches alike.

Shapes: B row of a batch or microbatch.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.distributed import sharding


class Seed(NamedTuple):
    """Determines one dropout."""

    words: jax.Array  # uint32[2]
    rows_B: jax.Array  # int32, the index of each row in the batch of the step


class DropoutKey(NamedTuple):
    """Determines all dropout of a forward pass."""

    key: jax.Array  # a typed PRNG key
    rows_B: jax.Array  # as in Seed

    def seeds(self, num: int) -> list[Seed]:
        words = jax.random.bits(self.key, (num, 2), jnp.uint32)
        return [Seed(pair, self.rows_B) for pair in words]


def row_indices(num_rows: int) -> jax.Array:
    """Returns int32[num_rows], the index of each row of a batch, placed like it."""
    return row_major_index((num_rows,), sharding.spec("batch"))


@jax.named_scope("dropout")
def dropout(x: jax.Array, rate: float, seed: Seed | None) -> jax.Array:
    """Zeroes a fraction `rate` of x and scales the rest by 1 / (1 - rate).

    The choice of elements is made again for the gradient instead of being stored.

    The first dim of x is B. If `seed` is None, x is returned.
    """
    if seed is None or rate == 0.0:
        return x
    return keep(x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), rate, seed)


def keep(x: jax.Array, rate: float, seed: Seed | None) -> jax.Array:
    """Zeroes the elements of x that `dropout` does, without scaling the rest."""
    if seed is None or rate == 0.0:
        return x
    # Two words, because a 32-bit counter is too small for a large tensor.
    half, spec = x.ndim // 2, jax.typeof(x).sharding.spec
    seeds = dropout_seeds(x.shape[:half], seed, jax.P(*spec[:half]))
    index = row_major_index(x.shape[half:], jax.P(*spec[half:]))
    trailing = (None,) * index.ndim
    is_kept_ = is_kept(seeds[(..., *trailing)] ^ fold(index)[(None,) * half], rate)
    return jnp.where(is_kept_, x, jnp.zeros_like(x))


def dropout_seeds(shape: tuple[int, ...], seed: Seed | None, spec: jax.P) -> jax.Array:
    """Returns int32[shape], a folded hash of the seed and of each index.

    The shape is the first half of the dims of the array that is dropped. Without a
    seed, the result is 0.
    """
    if seed is None:
        return jnp.zeros(shape, jnp.int32, out_sharding=spec)
    index = row_major_index(shape[1:], jax.P(*spec[1:]))
    rows = seed.rows_B * jnp.int32(math.prod(shape[1:]))
    index = rows[(..., *(None,) * index.ndim)] + index[None]
    hashed = mix32(index.astype(jnp.uint32) ^ seed.words[0]) ^ seed.words[1]
    return jax.lax.bitcast_convert_type(fold(hashed), jnp.int32)


def is_kept(folded: jax.Array, rate: float) -> jax.Array:
    """Returns whether dropout keeps elements, from fold(index) ^ fold(seed), int32.

    The hash is that of `mix32`, whose first step is `fold`, without its last step: the
    comparison depends on the high bits, which the last step does not change.
    """
    x = folded * jnp.int32(0x7FEB352D)
    x = x ^ jax.lax.shift_right_logical(x, jnp.int32(15))
    x = x * jnp.int32(0x846CA68B - 2**32)  # with the bits of the unsigned number
    return x >= jnp.int32(round(rate * 2**32) - 2**31)


def fold(x: jax.Array) -> jax.Array:
    """Returns x ^ (x >> 16), for which fold(x ^ y) is fold(x) ^ fold(y)."""
    return x ^ jax.lax.shift_right_logical(x, jnp.asarray(16, x.dtype))


def mix32(x: jax.Array) -> jax.Array:
    """Returns a bijective 32-bit hash: every output bit depends on every input bit.

    Source: the "lowbias32" multipliers found by C. Wellons' search (hash-prospector),
    bias 0.17.
    """
    x = fold(x) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return fold(x)


def row_major_index(shape: tuple[int, ...], spec: jax.P | None = None) -> jax.Array:
    """Returns int32[shape], the index of each element in row-major order."""
    index = jnp.int32(0)
    for dim, size in enumerate(shape):
        place = jax.lax.broadcasted_iota(jnp.int32, shape, dim, out_sharding=spec)
        index = index * jnp.int32(size) + place
    return index
