"""Attention as one Pallas kernel each way, for NVIDIA GPUs.

The scores of a block of queries and keys, float32[R, S], stay in registers, and the
backward kernel computes them again from the logarithm of each query's sum. With
einsums, arrays of this shape are written to memory and read several times: 40% of the
bytes of a BERT-base layer at 128 tokens, by the program that XLA compiles. Both kernels
read and write heads as lanes of the projections, so nothing is transposed.

Dropout's bits are those of `ops.dropout`, computed from the index. Sums have a
fixed order, so a step has the same bits each time.

Shapes: as in bert.py, R queries of a block and S keys of a block.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from bert_jax.model import ops

HEAD_DIMS = (64,)  # others have not run on a GPU
MASKED = -1e9
NUM_STAGES = 3  # loads of the next blocks overlap with the products of one


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Sizes of the blocks of a kernel, the fastest of those tried on an H200."""

    R: int
    S: int
    warps: int  # that share a block of scores

    def of_row(self, T: int) -> tuple[int, int]:
        """Returns R and S, reduced to divisors of T, for rows of T tokens."""
        return math.gcd(self.R, T), math.gcd(self.S, T)


FORWARD = Blocks(128, 64, warps=4)
BACKWARD = Blocks(64, 128, warps=8)


@dataclasses.dataclass(frozen=True)
class Options:
    """Static options of the kernels."""

    head_dim: int  # one of HEAD_DIMS
    rate: float  # dropout rate of the probabilities
    interpret: bool = False  # emulate the kernels on a CPU

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


def attend(
    projections: tuple[jax.Array, ...],
    query_ids_BT: jax.Array,
    key_ids_BT: jax.Array,
    seed: jax.Array | None,
    options: Options,
) -> jax.Array:
    """Returns the context [B, T, D] of each query within its own pair.

    It is that of `attention.attention`, except for padding queries of a row of several
    pairs: they attend to the first pair only. Nothing reads their context, and its
    gradient must be 0.

    Args:
      projections: bfloat16 queries, keys and values, each [B, T, D], or one array
        [B, T, 3D] of all. T is a multiple of gpu.MIN_LENGTH.
      query_ids_BT, key_ids_BT: int32, the number of the token's pair, 0 for padding.
      seed: uint32[2] of the dropout, or None if options.rate is 0.
      options: fixed options.
    """
    B, _, width = projections[0].shape
    num_heads = width * len(projections) // (3 * options.head_dim)
    rows, _, heads = jax.typeof(projections[0]).sharding.spec
    seed = jnp.zeros(2, jnp.uint32) if seed is None else seed
    seeds_BN = ops.dropout_seeds((B, num_heads), seed, jax.P(rows, heads))
    # Padding has another number as a key than as a query, so nothing attends to it.
    query_ids_BT = jnp.maximum(query_ids_BT, 1)
    key_ids_BT = jnp.where(key_ids_BT > 0, key_ids_BT, -1)
    return _attend(options, projections, (query_ids_BT, key_ids_BT, seeds_BN))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    options: Options,
    projections: tuple[jax.Array, ...],
    ids: tuple[jax.Array, ...],
) -> jax.Array:
    return _attend_forward(options, projections, ids)[0]


def _attend_forward(options, projections, ids):
    rows, _, heads = jax.typeof(projections[0]).sharding.spec

    def outputs(projections, num_heads):
        B, T, _ = projections[0].shape
        context = (B, T, num_heads * options.head_dim), projections[0].dtype
        return context, ((B, num_heads, T), jnp.float32)

    specs = jax.P(rows, None, heads), jax.P(rows, heads, None)
    out_BTD, log_BNT = _call(
        functools.partial(_attention_forward, options),
        FORWARD.R,
        FORWARD.warps,
        projections,
        ids,
        outputs,
        specs,
        options.interpret,
    )
    return out_BTD, (projections, ids, out_BTD, log_BNT)


def _attend_backward(options, saved, gradient_BTD):
    projections, ids, *others = saved

    def outputs(projections, _):
        return tuple((x.shape, x.dtype) for x in projections)

    gradients = _call(
        functools.partial(_attention_backward, options),
        BACKWARD.S,
        BACKWARD.warps,
        projections,
        (*ids, *others, gradient_BTD),
        outputs,
        tuple(jax.typeof(x).sharding.spec for x in projections),
        options.interpret,
    )
    return gradients, (None,) * len(ids)


_attend.defvjp(_attend_forward, _attend_backward)


def _call(
    kernel: Callable[..., None],
    block_size: int,
    num_warps: int,
    projections: tuple[jax.Array, ...],
    inputs: tuple[jax.Array, ...],
    outputs: Callable[[tuple[jax.Array, ...], int], tuple[tuple[Any, Any], ...]],
    out_specs: tuple[jax.P, ...],
    interpret: bool,
) -> tuple[jax.Array, ...]:
    """Runs a kernel on each device's rows and heads.

    Args:
      kernel: computes one block of one head of a row, from the number of projections
        and references to the whole row of each array.
      block_size: queries or keys of a program.
      num_warps: warps of a program.
      projections, inputs: inputs of the kernel; inputs[2] are the seeds [B, N].
      outputs: returns shapes and dtypes on a device, from the projections and N.
      out_specs: PartitionSpecs of the outputs.
      interpret: whether to emulate the kernel.
    """

    def whole_row(x: Any) -> pl.BlockSpec:
        zeros = (0,) * (x.ndim - 1)
        return pl.BlockSpec((1, *x.shape[1:]), lambda row, *_: (row, *zeros))

    def on_one_device(
        projections: tuple[jax.Array, ...], inputs: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, ...]:
        (B, T, _), num_heads = projections[0].shape, inputs[2].shape[1]
        arrays = *projections, *inputs
        made = [jax.ShapeDtypeStruct(*x) for x in outputs(projections, num_heads)]
        return pl.pallas_call(
            functools.partial(kernel, len(projections)),
            grid=(B, num_heads, T // math.gcd(block_size, T)),
            in_specs=list(map(whole_row, arrays)),
            out_specs=tuple(map(whole_row, made)),
            out_shape=tuple(made),
            compiler_params=triton.CompilerParams(
                num_warps=num_warps, num_stages=NUM_STAGES
            ),
            interpret=interpret,
        )(*arrays)

    # Pallas gives no axes along which its results vary, so they are not checked.
    run = jax.shard_map(on_one_device, out_specs=out_specs, check_vma=False)
    return run(projections, inputs)


def _attention_forward(options, num_projections, *refs):
    projections, (query_ids, key_ids, seeds, out_ref, log_ref) = (
        refs[:num_projections],
        refs[num_projections:],
    )
    q_TH, k_TH, v_TH = _heads(options, projections, 3 // num_projections)
    (out_TH,), T = _heads(options, (out_ref,)), out_ref.shape[1]
    R, S = FORWARD.of_row(T)
    head, first = pl.program_id(1), pl.program_id(2) * R
    queries = pl.ds(first, R)
    q_RH, ids_R, seed = q_TH[queries], query_ids[0, queries], seeds[0, head]

    def add_keys(i, sums):
        context_RH, max_R, sum_R = sums
        keys = pl.ds(i * S, S)
        scores_RS = _scores(q_RH, k_TH[keys], ids_R, key_ids[0, keys])
        new_max_R = jnp.maximum(max_R, jnp.max(scores_RS, axis=1))
        kept_RS = power_RS = _power(options, scores_RS - new_max_R[:, None])
        shrink_R = _power(options, max_R - new_max_R)
        if options.rate:
            index_RS = _iota((R, S), 0, first) * T + _iota((R, S), 1, i * S)
            is_kept_RS = ops.is_kept(ops.fold(index_RS) ^ seed, options.rate)
            kept_RS = jnp.where(is_kept_RS, power_RS, 0.0)
        context_RH = context_RH * shrink_R[:, None]
        context_RH += _dot(kept_RS.astype(q_RH.dtype), v_TH[keys])
        return context_RH, new_max_R, sum_R * shrink_R + jnp.sum(power_RS, axis=1)

    context_RH = jnp.zeros(q_RH.shape, jnp.float32)
    sums = context_RH, jnp.full(R, 2 * MASKED), jnp.zeros(R)
    context_RH, max_R, sum_R = _for(T // S, add_keys, sums)
    context_RH = context_RH / ((1.0 - options.rate) * sum_R)[:, None]
    out_TH[queries] = context_RH.astype(out_ref.dtype)
    # The logarithm of the sum, in the unit of the scores.
    unit = math.log2(math.e) * options.scale
    log_ref[0, head, queries] = max_R + jnp.log2(sum_R) * (1 / unit)


def _attention_backward(options, num_projections, *refs):
    """Computes the gradients of the keys of a block, then of the queries there.

    Those of keys are sums over blocks of queries, and the reverse. If one block has all
    keys, one loop computes both.
    """
    projections, (query_ids, key_ids, seeds, out_ref, log_ref, gradient_ref) = (
        refs[:num_projections],
        refs[num_projections:-num_projections],
    )
    q_TH, k_TH, v_TH = _heads(options, projections, 3 // num_projections)
    dq_TH, dk_TH, dv_TH = _heads(options, refs[-num_projections:], 3 // num_projections)
    out_TH, gradient_TH = _heads(options, (out_ref, gradient_ref))
    T, H = out_ref.shape[1], options.head_dim
    R, S = BACKWARD.of_row(T)
    head, first = pl.program_id(1), pl.program_id(2) * S
    seed, dtype = seeds[0, head], gradient_ref.dtype
    scale, keep_rate = options.scale, 1.0 - options.rate
    own = pl.ds(first, S)

    def gradients(query, num_queries, key, num_keys):
        """Returns the kept probabilities and the gradient of the scores, [S, R].

        Rows are keys, so that the first factors of the keys' sums are not transposed.
        The gradient is too large by 1 / keep_rate.
        """
        shape = num_keys, num_queries
        queries, keys = pl.ds(query, num_queries), pl.ds(key, num_keys)
        gradient_RH = gradient_TH[queries]
        scores_SR = _scores(
            k_TH[keys], q_TH[queries], key_ids[0, keys], query_ids[0, queries]
        )
        kept_SR = probs_SR = _power(
            options, scores_SR - log_ref[0, head, queries][None, :]
        )
        if options.rate:
            index_SR = _iota(shape, 1, query) * T + _iota(shape, 0, key)
            is_kept_SR = ops.is_kept(ops.fold(index_SR) ^ seed, options.rate)
            kept_SR = jnp.where(is_kept_SR, probs_SR, 0.0)
        # The sum over keys of a probability times its gradient is that over lanes of
        # the context times its gradient.
        float32 = jnp.float32
        product_RH = out_TH[queries].astype(float32) * gradient_RH.astype(float32)
        dot_R = jnp.sum(product_RH, axis=1) * keep_rate
        dkept_SR = _dot(v_TH[keys], gradient_RH.T)
        dscores_SR = kept_SR * dkept_SR - probs_SR * dot_R[None, :]
        return kept_SR.astype(dtype), dscores_SR.astype(dtype)

    def add_queries(i, sums):
        dk_SH, dv_SH = sums
        queries = pl.ds(i * R, R)
        kept_SR, dscores_SR = gradients(i * R, R, first, S)
        dv_SH += _dot(kept_SR, gradient_TH[queries])
        dk_SH += _dot(dscores_SR, q_TH[queries])
        if S == T:
            store_dq(queries, _dot(dscores_SR.T, k_TH[own]))
        return dk_SH, dv_SH

    def add_keys(i, dq_SH):
        _, dscores_RS = gradients(first, S, i * R, R)
        return dq_SH + _dot(dscores_RS.T, k_TH[pl.ds(i * R, R)])

    def store_dq(queries, dq_RH):
        dq_TH[queries] = (dq_RH * (scale / keep_rate)).astype(dtype)

    zeros_SH = jnp.zeros((S, H), jnp.float32)
    dk_SH, dv_SH = _for(T // R, add_queries, (zeros_SH, zeros_SH))
    dk_TH[own] = (dk_SH * (scale / keep_rate)).astype(dtype)
    dv_TH[own] = (dv_SH * (1.0 / keep_rate)).astype(dtype)
    if S < T:
        store_dq(own, _for(T // R, add_keys, zeros_SH))


class _Head:
    """A reference to the lanes [T, H] of a head in a reference [1, T, width]."""

    def __init__(self, ref: Any, start: Any, head_dim: int):
        self._ref = ref
        self._lanes = pl.ds(start, head_dim)

    def __getitem__(self, rows: Any) -> jax.Array:
        return self._ref[0, rows, self._lanes]

    def __setitem__(self, rows: Any, value: jax.Array) -> None:
        self._ref[0, rows, self._lanes] = value


def _heads(options: Options, refs: tuple[Any, ...], parts: int = 1) -> list[_Head]:
    """Returns this program's head in each part of each array."""
    start, H = pl.program_id(1) * options.head_dim, options.head_dim
    return [
        _Head(ref, part * (ref.shape[2] // parts) + start, H)
        for ref in refs
        for part in range(parts)
    ]


def _for(num_steps: int, step: Callable[[Any, Any], Any], sums: Any) -> Any:
    """Runs a loop of a fixed number of steps; one step needs none."""
    if num_steps == 1:
        return step(0, sums)
    return jax.lax.fori_loop(0, num_steps, step, sums)


def _scores(x_RH, y_SH, x_ids_R, y_ids_S):
    """Returns the unscaled scores [R, S] of queries and keys, or the reverse."""
    is_own_RS = x_ids_R[:, None] == y_ids_S[None, :]
    return jnp.where(is_own_RS, _dot(x_RH, y_SH.T), MASKED)


def _power(options, scores):
    """Returns the exponential of the scaled scores."""
    return jnp.exp2(scores * (options.scale * math.log2(math.e)))


def _iota(shape: tuple[int, int], dim: int, start: Any) -> jax.Array:
    return start + jax.lax.broadcasted_iota(jnp.int32, shape, dim)


def _dot(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.dot(x, y, preferred_element_type=jnp.float32)
