"""The backward pass of a bias and the tanh GELU as one Pallas kernel, for NVIDIA GPUs.

Forward, cuBLAS adds the bias, stores the sum and applies the GELU to the product that
it computes. XLA's kernel for the gradient spends more time on the hyperbolic tangent
than on memory. This one has an exponential instead, and sums the gradient of the bias
in float32, in a fixed order, as it computes the terms.

Shapes: as in bert.py, M tokens of all rows, R tokens of a step, C columns of a program.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.model.kernels import gpu

COLUMNS = 256  # of a program; a device's part of F is a multiple
PROGRAM_ROWS = gpu.MIN_LENGTH  # of a program
ROWS = 4  # of a step
NUM_WARPS = 8


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def add_and_gelu(
    x_BTF: jax.Array, bias_F: jax.Array, interpret: bool = False
) -> jax.Array:
    """Returns gelu(x + bias), by its tanh approximation, in the dtype of x, bfloat16.

    T is a multiple of gpu.MIN_LENGTH, F of COLUMNS on each device.
    """
    return _add_and_gelu_forward(x_BTF, bias_F, interpret)[0]


def _add_and_gelu_forward(x_BTF, bias_F, interpret):
    del interpret
    sum_BTF = x_BTF + bias_F.astype(x_BTF.dtype)[None, None]
    return jax.nn.gelu(sum_BTF, approximate=True), sum_BTF


def _add_and_gelu_backward(interpret, sum_BTF, gradient_BTF):
    spec = jax.typeof(gradient_BTF).sharding.spec

    def on_one_device(*inputs: jax.Array) -> Any:
        B, T, F = inputs[0].shape
        M, N = B * T, B * T // PROGRAM_ROWS
        dx_MF, sums_NF = gpu.run(
            _gelu_backward,
            (N, F // COLUMNS),
            tuple(x.reshape(M, F) for x in inputs),
            (
                jax.ShapeDtypeStruct((M, F), inputs[0].dtype),
                jax.ShapeDtypeStruct((N, F), jnp.float32),
            ),
            interpret=interpret,
            num_warps=NUM_WARPS,
        )
        return dx_MF.reshape(B, T, F), sums_NF

    specs = spec, jax.P(spec[0], spec[2])
    run = gpu.on_each_device(on_one_device, specs)
    dx_BTF, sums_NF = run(sum_BTF, gradient_BTF)
    return dx_BTF, jnp.sum(sums_NF, axis=0)


add_and_gelu.defvjp(_add_and_gelu_forward, _add_and_gelu_backward)


def _gelu_backward(sum_ref, gradient_ref, dx_ref, sums_ref):
    R, C = ROWS, COLUMNS
    program, columns = pl.program_id(0), pl.ds(pl.program_id(1) * C, C)

    def add_rows(i, total_RC):
        rows = pl.ds(program * PROGRAM_ROWS + i * R, R)
        x_RC = sum_ref[rows, columns].astype(jnp.float32)
        gradient_RC = gradient_ref[rows, columns].astype(jnp.float32)
        dx_RC = gradient_RC * _slope(x_RC)
        dx_ref[rows, columns] = dx_RC.astype(dx_ref.dtype)
        return total_RC + dx_RC

    zeros_RC = jnp.zeros((R, C), jnp.float32)
    total_RC = jax.lax.fori_loop(0, PROGRAM_ROWS // R, add_rows, zeros_RC)
    sums_ref[program, columns] = jnp.sum(total_RC, axis=0)


def _slope(x: jax.Array) -> jax.Array:
    """Returns the derivative of x (1 + tanh u) / 2 = x sigmoid(2 u)."""
    a, b = 2.0 * math.sqrt(2.0 / math.pi), 0.044715
    square = x * x
    sigmoid = 1.0 / (1.0 + jnp.exp2(x * (1.0 + b * square) * (-a * math.log2(math.e))))
    return sigmoid * (1.0 + x * (1.0 - sigmoid) * (a + 3.0 * a * b * square))
