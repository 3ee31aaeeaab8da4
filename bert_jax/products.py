"""Products of low-precision arrays that are kept in float32, and so are not rounded."""

import functools

import jax
import jax.numpy as jnp

from bert_jax import sharding


def einsum_float32(
    equation: str,
    x: jax.Array,
    y: jax.Array,
    out_sharding: jax.P | None = None,
) -> jax.Array:
    """Returns float32, the einsum of x and y, which are of one dtype.

    On a GPU, what goes back to x and y is computed in their dtype. By itself JAX would
    multiply the float32 gradient as it is: there at half the rate, after copying the
    other factor to float32. The TPU's compiler does better by itself.
    """
    if sharding.platform() == "gpu":
        return _with_low_gradient(equation, x, y, out_sharding)
    return _einsum(equation, x, y, out_sharding)


def _einsum(equation, x, y, out_sharding):
    return jnp.einsum(
        equation,
        x,
        y,
        preferred_element_type=jnp.float32,
        out_sharding=out_sharding,
    )


_with_low_gradient = jax.custom_vjp(_einsum, nondiff_argnums=(0, 3))


def _forward(equation, x, y, out_sharding):
    return _einsum(equation, x, y, out_sharding), (x, y)


def _backward(equation, out_sharding, factors, gradient):
    product = functools.partial(jnp.einsum, equation, out_sharding=out_sharding)
    _, vjp = jax.vjp(product, *factors)
    return vjp(gradient.astype(factors[0].dtype))


_with_low_gradient.defvjp(_forward, _backward)
