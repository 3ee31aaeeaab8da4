"""Dropout, residual sum and LayerNorm as one Pallas kernel each way, for NVIDIA GPUs.

XLA computes them in three passes over memory forward and three backward; each reads the
output of the previous one. The kernels read and write every array once.
Gradients of the scale and the bias are summed in float32, in a fixed order.

Dropout's bits are those of `dropout.dropout`, computed from the index.

Shapes: as in bert.py, R rows of a step, C columns of a chunk: a power of 2.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.model import dropout
from bert_jax.model.kernels import gpu

MIN_WIDTH = 64  # D is a multiple
# Rows of a step, the fastest of those tried on an H200. One warp computes them.
FORWARD_ROWS, BACKWARD_ROWS = 1, 2
# Rows of a program of the backward kernel, which adds up gradients of the weights.
PROGRAM_ROWS = gpu.MIN_LENGTH


@dataclasses.dataclass(frozen=True)
class Options:
    """Static options of the kernels."""

    eps: float
    rate: float  # dropout rate
    interpret: bool = False  # emulate the kernels on a CPU


def add_and_norm(
    x_BTD: jax.Array,
    y_BTD: jax.Array,
    scale_D: jax.Array,
    bias_D: jax.Array,
    seed: dropout.Seed | None,
    options: Options,
) -> jax.Array:
    """Returns LayerNorm(x + dropout(y)), [B, T, D] in the dtype of x.

    That is bfloat16. T is a multiple of gpu.MIN_LENGTH, D of MIN_WIDTH.
    """
    rows = jax.typeof(x_BTD).sharding.spec[0]
    seeds_B = dropout.dropout_seeds(x_BTD.shape[:1], seed, jax.P(rows))
    return _add_and_norm(options, x_BTD, y_BTD, scale_D, bias_D, seeds_B)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_and_norm(options: Options, *inputs: jax.Array) -> jax.Array:
    return _add_and_norm_forward(options, *inputs)[0]


def _add_and_norm_forward(options, x_BTD, y_BTD, scale_D, bias_D, seeds_B):
    spec = jax.typeof(x_BTD).sharding.spec

    def on_one_device(*inputs: jax.Array) -> Any:
        B, T, D = inputs[0].shape
        array = jax.ShapeDtypeStruct((B, T, D), inputs[0].dtype)
        return gpu.run(
            functools.partial(_norm_forward, options),
            (B, T // FORWARD_ROWS),
            inputs,
            (array, array),
            interpret=options.interpret,
            num_warps=1,
        )

    run = gpu.on_each_device(on_one_device, (spec, spec))
    out_BTD, sum_BTD = run(x_BTD, y_BTD, scale_D, bias_D, seeds_B)
    return out_BTD, (sum_BTD, scale_D, seeds_B)


def _add_and_norm_backward(options, saved, gradient_BTD):
    spec = jax.typeof(gradient_BTD).sharding.spec
    partial_spec = jax.P(spec[0], None)

    def on_one_device(*inputs: jax.Array) -> Any:
        B, T, D = inputs[-1].shape
        array = jax.ShapeDtypeStruct((B, T, D), inputs[-1].dtype)
        grid = B, T // PROGRAM_ROWS
        sums = jax.ShapeDtypeStruct((math.prod(grid), D), jnp.float32)
        outputs = (sums, sums, array, *[array] * bool(options.rate))
        kernel = functools.partial(_norm_backward, options)
        interpret = options.interpret
        return gpu.run(kernel, grid, inputs, outputs, interpret=interpret, num_warps=1)

    specs = (partial_spec, partial_spec, spec, *[spec] * bool(options.rate))
    run = gpu.on_each_device(on_one_device, specs)
    scales_ND, biases_ND, *gradients = run(*saved, gradient_BTD)
    sums = jnp.sum(scales_ND, axis=0), jnp.sum(biases_ND, axis=0)
    return gradients[0], gradients[-1], *sums, None


_add_and_norm.defvjp(_add_and_norm_forward, _add_and_norm_backward)


def _norm_forward(options, x_ref, y_ref, scale_ref, bias_ref, seeds, *outputs):
    out_ref, sum_ref = outputs
    _, _, D = x_ref.shape
    row, first = pl.program_id(0), pl.program_id(1) * FORWARD_ROWS
    rows = pl.ds(first, FORWARD_ROWS)
    seed, dtype = seeds[row], x_ref.dtype
    chunks = []
    for columns in _chunks(D):
        y_RC = y_ref[row, rows, columns].astype(jnp.float32)
        y_RC = _drop(options, y_RC, first, columns, D, seed)
        sum_RC = (x_ref[row, rows, columns].astype(jnp.float32) + y_RC).astype(dtype)
        sum_ref[row, rows, columns] = sum_RC
        chunks.append(sum_RC.astype(jnp.float32))
    chunks, _ = _normalize(options, chunks, D)
    for columns, normal_RC in zip(_chunks(D), chunks, strict=True):
        out_RC = normal_RC * scale_ref[columns][None] + bias_ref[columns][None]
        out_ref[row, rows, columns] = out_RC.astype(dtype)


def _norm_backward(options, sum_ref, scale_ref, seeds, gradient_ref, *outputs):
    scales_ref, biases_ref, dx_ref, *dy_refs = outputs
    _, _, D = sum_ref.shape
    row, part, R = pl.program_id(0), pl.program_id(1), BACKWARD_ROWS
    seed, dtype = seeds[row], sum_ref.dtype
    all_columns = _chunks(D)
    scales = [scale_ref[columns][None] for columns in all_columns]

    def add_rows(i, sums):
        first = part * PROGRAM_ROWS + i * R
        rows = pl.ds(first, R)

        def load(ref):
            return [ref[row, rows, x].astype(jnp.float32) for x in all_columns]

        normals, deviation_R1 = _normalize(options, load(sum_ref), D)
        gradients = load(gradient_ref)
        scaled = [g * scale for g, scale in zip(gradients, scales, strict=True)]
        mean_R1 = _mean(scaled, D)
        products = [g * n for g, n in zip(scaled, normals, strict=True)]
        slope_R1 = _mean(products, D)
        new = []
        for columns, g, normal, gs, (d_scale, d_bias) in zip(
            all_columns, gradients, normals, scaled, sums, strict=True
        ):
            dx_RC = (gs - mean_R1 - normal * slope_R1) * deviation_R1
            dx_ref[row, rows, columns] = dx_RC.astype(dtype)
            for dy_ref in dy_refs:
                dy_RC = _drop(options, dx_RC, first, columns, D, seed)
                dy_ref[row, rows, columns] = dy_RC.astype(dtype)
            new.append((d_scale + g * normal, d_bias + g))
        return tuple(new)

    zeros = [jnp.zeros((R, x.size), jnp.float32) for x in all_columns]
    sums = jax.lax.fori_loop(
        0, PROGRAM_ROWS // R, add_rows, tuple((zero, zero) for zero in zeros)
    )
    place = row * pl.num_programs(1) + part
    for columns, (d_scale, d_bias) in zip(all_columns, sums, strict=True):
        scales_ref[place, columns] = jnp.sum(d_scale, axis=0)
        biases_ref[place, columns] = jnp.sum(d_bias, axis=0)


def _chunks(size: int) -> list[Any]:
    """Returns slices of all columns, whose sizes are powers of 2."""
    chunks, start = [], 0
    while start < size:
        chunk = 1 << ((size - start).bit_length() - 1)
        chunks.append(pl.ds(start, chunk))
        start += chunk
    return chunks


def _drop(options, y_RC, first, columns, D, seed):
    if not options.rate:
        return y_RC
    index_RC = (first + _iota(y_RC.shape, 0)) * D + columns.start + _iota(y_RC.shape, 1)
    is_kept_RC = dropout.is_kept(dropout.fold(index_RC) ^ seed, options.rate)
    return jnp.where(is_kept_RC, y_RC * (1.0 / (1.0 - options.rate)), 0.0)


def _normalize(options, chunks, D):
    """Returns the normalized chunks and the reciprocal of the deviation, [R, 1]."""
    mean_R1 = _mean(chunks, D)
    centred = [x - mean_R1 for x in chunks]
    deviation_R1 = jax.lax.rsqrt(_mean([x * x for x in centred], D) + options.eps)
    return [x * deviation_R1 for x in centred], deviation_R1


def _mean(chunks: list[jax.Array], D: int) -> jax.Array:
    total_R = functools.reduce(jnp.add, [jnp.sum(x, axis=1) for x in chunks])
    return (total_R * (1.0 / D))[:, None]


def _iota(shape: tuple[int, int], dim: int) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, dim)
