"""Attention as one Pallas kernel each way, for whole rows on TPUs.

The scores of a head, float32[T, S], stay in the core's memory (VMEM), and the backward
kernel computes them again. With einsums, arrays of this shape are written to HBM and
read again, which takes 37% of the cycles at 512 tokens on a v5e. Both kernels read and
write [B, T, D] as the projections do: a block of 128 lanes holds 128 / H heads, and the
product of the keys with queries whose other lanes are 0 is the scores of one head, so
nothing is sliced or transposed.

The vector unit limits the forward kernel, and so it computes the scaled exponential as
a power of 2, divides after the product with the values, and finds dropout's bits (those
of `dropout.dropout`) from a hash of the index that is the same for all heads.

Shapes: as in bert.py, and L lanes of a block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.model import dropout
from bert_jax.model.kernels import Options

LANES = 128
HEAD_DIMS = (32, 64, 128)
MASKED = -1e9
VMEM_BYTES = 32 * 2**20  # the kernels need about 20 MiB at 512 tokens


def attend(
    q_BTD: jax.Array,
    k_BSD: jax.Array,
    v_BSD: jax.Array,
    query_ids_BT: jax.Array,
    key_ids_BS: jax.Array,
    seed: dropout.Seed | None,
    options: Options,
) -> jax.Array:
    """Returns the context [B, T, D] of each query within its own pair.

    It is that of `attention.attention`, except for padding queries of a row of several
    pairs: they attend to the first pair only. Nothing reads their context.

    The arguments are those of `attention.attention`, in bfloat16. S equals T; T and a
    device's part of D are multiples of LANES.
    """
    B, T, D = q_BTD.shape
    rows, _, heads = jax.typeof(q_BTD).sharding.spec
    # Padding has another number as a key than as a query, so nothing attends to it.
    query_ids_BT1 = jnp.maximum(query_ids_BT, 1)[:, :, None]
    key_ids_B1S = jnp.where(key_ids_BS > 0, key_ids_BS, -1)[:, None]
    shape = (B, D // options.head_dim)
    seeds_BN = dropout.dropout_seeds(shape, seed, jax.P(rows, heads))
    index_TS = dropout.fold(dropout.row_major_index((T, T)))
    ids = query_ids_BT1, key_ids_B1S
    return _attend(options, q_BTD, k_BSD, v_BSD, *ids, seeds_BN, index_TS)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options: Options, *inputs: jax.Array) -> jax.Array:
    return _call(_forward_kernel, options, inputs, num_outputs=1, num_products=2)[0]


def _attend_forward(options, *inputs):
    out_BTD = _attend(options, *inputs)
    return out_BTD, (inputs, out_BTD)


def _attend_backward(options, saved, gradient_BTD):
    inputs, out_BTD = saved
    inputs = (*inputs, out_BTD, gradient_BTD)
    gradients = _call(_backward_kernel, options, inputs, num_outputs=3, num_products=5)
    return *gradients, *[None] * 4


_attend.defvjp(_attend_forward, _attend_backward)


def _call(
    kernel: Any,
    options: Options,
    inputs: tuple[jax.Array, ...],
    num_outputs: int,
    num_products: int,
) -> tuple[jax.Array, ...]:
    """Runs a kernel on each device's rows and heads; returns arrays like inputs[0].

    The estimates of the compiler and of preflight are made from `num_products`, the
    matrix products for each head.
    """
    T = inputs[0].shape[1]
    block = pl.BlockSpec((1, T, LANES), lambda row, block: (row, 0, block))
    blocks = {
        "query_ids": pl.BlockSpec((1, T, 1), lambda row, block: (row, 0, 0)),
        "key_ids": pl.BlockSpec((1, 1, T), lambda row, block: (row, 0, 0)),
        "seeds": pl.BlockSpec(memory_space=pltpu.SMEM),
        "index": pl.BlockSpec((T, T), lambda row, block: (0, 0)),
    }
    num_blocks = len(inputs) - len(blocks)

    def on_one_device(*inputs: jax.Array) -> tuple[jax.Array, ...]:
        q_BTD = inputs[0]
        rows, _, width = q_BTD.shape
        num_heads = rows * width // options.head_dim
        num_arrays = num_blocks + num_outputs
        cost = pl.CostEstimate(
            flops=num_products * num_heads * 2 * T * T * LANES,
            transcendentals=num_heads * T * T,
            bytes_accessed=num_arrays * q_BTD.size * q_BTD.dtype.itemsize,
        )
        return pl.pallas_call(
            functools.partial(kernel, options),
            grid=(rows, width // LANES),
            in_specs=[*[block] * 3, *blocks.values(), *[block] * (num_blocks - 3)],
            out_specs=(block,) * num_outputs,
            out_shape=(jax.ShapeDtypeStruct(q_BTD.shape, q_BTD.dtype),) * num_outputs,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel"),
                vmem_limit_bytes=VMEM_BYTES,
            ),
            cost_estimate=cost,
            interpret=options.interpret,
            name=kernel.__name__.strip("_"),
        )(*inputs)

    # Pallas gives no axes along which its results vary, so they are not checked.
    spec = jax.typeof(inputs[0]).sharding.spec
    run = jax.shard_map(on_one_device, out_specs=(spec,) * num_outputs, check_vma=False)
    return run(*inputs)


def _forward_kernel(
    options, q_ref, k_ref, v_ref, query_ids, key_ids, seeds, index, out
):
    q_TL, k_TL, v_TL = q_ref[0], k_ref[0], v_ref[0]
    outs = []
    for head, is_own in _heads(options, q_TL.shape):
        power_TS, sum_T1 = _powers(options, q_TL, is_own, k_TL, query_ids, key_ids)
        if options.rate:
            keep_TS = dropout.is_kept(index[...] ^ seeds[*head], options.rate)
            power_TS = jnp.where(keep_TS, power_TS, 0.0)
        context_TL = _dot(power_TS.astype(v_TL.dtype), v_TL, (1, 0))
        outs.append(context_TL * _inverse((1.0 - options.rate) * sum_T1))
    out[0] = _merge(options, outs).astype(out.dtype)


def _backward_kernel(options, *refs):
    q_ref, k_ref, v_ref, query_ids, key_ids, seeds, index, *others = refs
    out_ref, gradient_ref, dq_ref, dk_ref, dv_ref = others
    q_TL, k_TL, v_TL, gradient_TL = q_ref[0], k_ref[0], v_ref[0], gradient_ref[0]
    products_TL = out_ref[0].astype(jnp.float32) * gradient_TL.astype(jnp.float32)
    keep_rate = 1.0 - options.rate
    dqs, dks, dvs = [], [], []
    for head, is_own in _heads(options, q_TL.shape):
        power_TS, sum_T1 = _powers(options, q_TL, is_own, k_TL, query_ids, key_ids)
        probs_TS = kept_TS = power_TS * _inverse(sum_T1)
        if options.rate:
            keep_TS = dropout.is_kept(index[...] ^ seeds[*head], options.rate)
            kept_TS = jnp.where(keep_TS, probs_TS, 0.0)
        # The sum over keys of a probability times its gradient is that over lanes of
        # the context times its gradient.
        dot_T1 = jnp.sum(_only(products_TL, is_own), axis=1, keepdims=True)
        dprobs_TS = _dot(_only(gradient_TL, is_own), v_TL, (1, 1))
        # The gradient of the scores, times keep_rate.
        ds_TS = kept_TS * dprobs_TS - probs_TS * (dot_T1 * keep_rate)
        ds_TS = ds_TS.astype(q_TL.dtype)
        dvs.append(_dot(kept_TS.astype(q_TL.dtype), gradient_TL, (0, 0)))
        dqs.append(_dot(ds_TS, k_TL, (1, 0)))
        dks.append(_dot(ds_TS, q_TL, (0, 0)))
    scale = options.scale / keep_rate
    dq_ref[0] = (_merge(options, dqs) * scale).astype(dq_ref.dtype)
    dk_ref[0] = (_merge(options, dks) * scale).astype(dk_ref.dtype)
    dv_ref[0] = (_merge(options, dvs) / keep_rate).astype(dv_ref.dtype)


def _heads(options: Options, shape: tuple[int, int]):
    """Yields (row, head) and bool[T, L], the head's lanes, for each head of a block."""
    row, block = pl.program_id(0), pl.program_id(1)
    lane_TL = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    num_heads = LANES // options.head_dim
    for i in range(num_heads):
        start = i * options.head_dim
        is_own_TL = (lane_TL >= start) & (lane_TL < start + options.head_dim)
        yield (row, block * num_heads + i), is_own_TL


def _powers(options, q_TL, is_own_TL, k_TL, query_ids, key_ids):
    """Returns a head's unnormalized probabilities [T, S] and their sums [T, 1]."""
    scores_TS = _dot(_only(q_TL, is_own_TL), k_TL, (1, 1))
    scores_TS = jnp.where(query_ids[0] == key_ids[0], scores_TS, MASKED)
    largest_T1 = jnp.max(scores_TS, axis=1, keepdims=True)
    power_TS = jnp.exp2((scores_TS - largest_T1) * options.unit)
    return power_TS, jnp.sum(power_TS, axis=1, keepdims=True)


def _only(x_TL: jax.Array, is_own_TL: jax.Array) -> jax.Array:
    return jnp.where(is_own_TL, x_TL, jnp.zeros_like(x_TL))


def _merge(options: Options, heads_TL: list[jax.Array]) -> jax.Array:
    """Returns the block whose lanes are those of each head."""
    merged_TL = heads_TL[0]
    lane_TL = jax.lax.broadcasted_iota(jnp.int32, merged_TL.shape, 1)
    for i, head_TL in enumerate(heads_TL[1:], start=1):
        merged_TL = jnp.where(lane_TL >= i * options.head_dim, head_TL, merged_TL)
    return merged_TL


def _inverse(x_T1: jax.Array) -> jax.Array:
    # A Newton step makes the core's approximation as precise as a division, for less.
    y_T1 = pl.reciprocal(x_T1, approx=True)
    return y_T1 * (2.0 - x_T1 * y_T1)


def _dot(x: jax.Array, y: jax.Array, dims: tuple[int, int]) -> jax.Array:
    """Returns the float32 product of two matrices, summed over one dim of each."""
    contracted = ((dims[0],), (dims[1],))
    return jax.lax.dot_general(
        x, y, (contracted, ((), ())), preferred_element_type=jnp.float32
    )
