"""Matrix products with explicit precision and gradients faster than JAX's own rules.

Products of float32 factors are computed in float32. By default a TPU rounds such
factors to bfloat16 and a GPU to TF32, so "float32" would promise more than it gives.
Products of bfloat16 factors are exact in the matrix units and added in float32.
"""

import jax
import jax.numpy as jnp

from bert_jax.distributed import sharding


def precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """Returns the precision of a product whose factors have this dtype."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def times_kernel(
    x: jax.Array, kernel: jax.Array, out_sharding: jax.P | None = None
) -> jax.Array:
    """Returns x @ kernel, [..., input] and [input, output] -> [..., output].

    The kernel is cast to the dtype of x. Its gradient has the kernel's own dtype, and
    is rounded to that on each device before it is summed over devices: the gradient of
    a float32 kernel is not rounded, whatever the dtype of x.

    The gradient of the kernel is computed in the layout of the kernel. JAX's own rule
    computes its transpose; the compiler of TPUs up to v6e then lays out the update
    transposed, and copies the parameter and its moments to that layout and back: 12% of
    a large step at 32 sequences of 128 tokens a chip of v5e, by preflight's estimate.

    Args:
      x: the activations.
      kernel: of the dtype of x or float32.
      out_sharding: layout of the result, where JAX cannot infer it.
    """
    return _with_gradient_as_stored(x, kernel, out_sharding)


def _times_kernel(
    x: jax.Array, kernel: jax.Array, out_sharding: jax.P | None
) -> jax.Array:
    return jnp.dot(
        x,
        kernel.astype(x.dtype),
        precision=precision(x.dtype),
        out_sharding=out_sharding,
    )


_with_gradient_as_stored = jax.custom_vjp(_times_kernel, nondiff_argnums=(2,))


def _times_kernel_forward(x, kernel, out_sharding):
    # Not the wrapped function: remat would see a call and not keep the product.
    return _times_kernel(x, kernel, out_sharding), (x, kernel)


def _times_kernel_backward(out_sharding, factors, gradient):
    del out_sharding
    x, kernel = factors
    # Specs, not shardings: arrays that are on no mesh yet belong to this one, too.
    of_x, of_kernel = jax.typeof(x).sharding.spec, jax.typeof(kernel).sharding.spec
    rows, last = tuple(range(x.ndim - 1)), x.ndim - 1
    return (
        jax.lax.dot_general(
            gradient,
            kernel.astype(x.dtype),
            (((last,), (1,)), ((), ())),
            precision=precision(x.dtype),
            out_sharding=of_x,
        ),
        jax.lax.dot_general(
            x,
            gradient,
            ((rows, rows), ((), ())),
            precision=precision(x.dtype),
            preferred_element_type=kernel.dtype,
            out_sharding=of_kernel,
        ),
    )


_with_gradient_as_stored.defvjp(_times_kernel_forward, _times_kernel_backward)


def einsum_float32(
    equation: str,
    x: jax.Array,
    y: jax.Array,
    out_sharding: jax.P | None = None,
) -> jax.Array:
    """Returns the einsum of x and y, factors of one dtype, without rounding to it.

    On a GPU, the gradient is cast to the dtype of x and y before it is multiplied. By
    JAX's own rule it stays float32, which a GPU multiplies at half the rate after
    copying the other factor to float32. On a TPU the cast would make a step 2% slower,
    by preflight's estimate.

    Args:
      equation: "ab,bc->ac"; every index is in two of the three.
      x, y: the factors.
      out_sharding: layout of the result, where JAX cannot infer it.
    """
    if sharding.platform() == "gpu":
        return _with_low_gradient(equation, x, y, out_sharding)
    return _einsum(equation, x, y, out_sharding)


def _einsum(
    equation: str, x: jax.Array, y: jax.Array, out_sharding: jax.P | None
) -> jax.Array:
    return jnp.einsum(
        equation,
        x,
        y,
        precision=precision(x.dtype),
        preferred_element_type=jnp.float32,
        out_sharding=out_sharding,
    )


_with_low_gradient = jax.custom_vjp(_einsum, nondiff_argnums=(0, 3))


def _einsum_forward(equation, x, y, out_sharding):
    return _einsum(equation, x, y, out_sharding), (x, y)


def _einsum_backward(equation, out_sharding, factors, gradient):
    del out_sharding
    x, y = factors
    gradient = gradient.astype(x.dtype)
    inputs, output = equation.split("->")
    of_x, of_y = inputs.split(",")

    def product(equation: str, factor: jax.Array, like: jax.Array) -> jax.Array:
        # A float32 sum, over devices as well, that is rounded once.
        out = jax.typeof(like).sharding.spec
        return _einsum(equation, gradient, factor, out).astype(like.dtype)

    return (
        product(f"{output},{of_y}->{of_x}", y, x),
        product(f"{output},{of_x}->{of_y}", x, y),
    )


_with_low_gradient.defvjp(_einsum_forward, _einsum_backward)
