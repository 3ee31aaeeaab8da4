"""Attention as one Pallas kernel each way, for NVIDIA GPUs.

The scores of a block of queries and keys, float32[R, S], stay in registers, and the
backward kernel computes them again from the logarithm of each query's sum. With
einsums, arrays of this shape are written to memory and read several times: 40% of the
bytes of a BERT-base layer at 128 tokens, by the program that XLA compiles. Both kernels
read and write heads as lanes of the projections, so nothing is transposed.

Blocks of queries and keys without a common pair are skipped: half of them in a row of
two pairs.

Dropout's bits are those of `dropout.dropout`, computed from the index. Sums have a
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

from bert_jax.model import dropout
from bert_jax.model.kernels import Options, gpu

HEAD_DIMS = (32, 64)  # those of 128 need other blocks
MASKED = -1e9
NUM_STAGES = 3  # loads of the next blocks overlap with the products of one
PADDING = 2**30  # number of the pair of a padding key


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


def attend(
    projections: tuple[jax.Array, ...],
    query_ids_BT: jax.Array,
    key_ids_BT: jax.Array,
    seed: dropout.Seed | None,
    options: Options,
) -> jax.Array:
    """Returns the context [B, T, D] of each query within its own pair.

    It is that of `attention.attention`, except for padding queries of a row of several
    pairs: they attend to the last pair only. Nothing reads their context, and its
    gradient must be 0.

    The arguments are those of `attention.attention`, in bfloat16. T is a multiple of
    gpu.MIN_LENGTH, and each number of a query's pair is also one of a key.
    """
    B, _, width = projections[0].shape
    num_heads = width * len(projections) // (3 * options.head_dim)
    rows, _, heads = jax.typeof(projections[0]).sharding.spec
    seeds_BN = dropout.dropout_seeds((B, num_heads), seed, jax.P(rows, heads))
    # Padding has another number as a key than as a query, so nothing attends to it,
    # except in a row of padding only: there all attend to all.
    last_B1 = jnp.max(key_ids_BT, axis=1, keepdims=True)
    query_ids_BT = jnp.where(query_ids_BT > 0, query_ids_BT, last_B1)
    padding_B1 = jnp.where(last_B1 > 0, PADDING, 0)
    key_ids_BT = jnp.where(key_ids_BT > 0, key_ids_BT, padding_B1)
    return _attend(options, projections, (query_ids_BT, key_ids_BT, seeds_BN))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    options: Options, projections: tuple[jax.Array, ...], ids: tuple[jax.Array, ...]
) -> jax.Array:
    return _attend_forward(options, projections, ids)[0]


def _attend_forward(options, projections, ids):
    rows, _, heads = jax.typeof(projections[0]).sharding.spec

    def on_one_device(projections, ids):
        (query_ids_BT, key_ids_BT, seeds_BN), (B, T, _) = ids, projections[0].shape
        R, S = FORWARD.of_row(T)
        keys_BQ2 = _ranges(_share_pairs(query_ids_BT, R, key_ids_BT, S))
        width = seeds_BN.shape[1] * options.head_dim
        return gpu.run(
            functools.partial(_attention_forward, options, len(projections)),
            (*seeds_BN.shape, T // R),
            (*projections, *ids, keys_BQ2),
            (
                jax.ShapeDtypeStruct((B, T, width), projections[0].dtype),
                jax.ShapeDtypeStruct((*seeds_BN.shape, T), jnp.float32),
            ),
            interpret=options.interpret,
            by_row=True,
            num_warps=FORWARD.warps,
            num_stages=NUM_STAGES,
        )

    specs = jax.P(rows, None, heads), jax.P(rows, heads, None)
    out_BTD, log_BNT = gpu.on_each_device(on_one_device, specs)(projections, ids)
    return out_BTD, (projections, ids, out_BTD, log_BNT)


def _attend_backward(options, saved, gradient_BTD):
    projections, ids, out_BTD, log_BNT = saved

    def on_one_device(projections, ids, *others):
        (query_ids_BT, key_ids_BT, seeds_BN), (B, T, _) = ids, projections[0].shape
        R, S = BACKWARD.of_row(T)
        queries_BK2 = _ranges(_share_pairs(key_ids_BT, S, query_ids_BT, R))
        block = jnp.arange(T // R)[None, None]
        is_read_BKQ = (queries_BK2[..., :1] <= block) & (block < queries_BK2[..., 1:])
        keys_BQ2 = _ranges(is_read_BKQ.swapaxes(1, 2))
        out = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in projections]
        if S < T:  # sums of the queries' gradients over blocks of keys
            width = seeds_BN.shape[1] * options.head_dim
            out.append(jax.ShapeDtypeStruct((B, T, width), jnp.float32))
        return gpu.run(
            functools.partial(_attention_backward, options, len(projections)),
            seeds_BN.shape,
            (*projections, *ids, *others, queries_BK2, keys_BQ2),
            tuple(out),
            interpret=options.interpret,
            by_row=True,
            num_warps=BACKWARD.warps,
            num_stages=NUM_STAGES,
        )[: len(projections)]

    specs = tuple(jax.typeof(x).sharding.spec for x in projections)
    run = gpu.on_each_device(on_one_device, specs)
    gradients = run(projections, ids, out_BTD, log_BNT, gradient_BTD)
    return gradients, (None,) * len(ids)


_attend.defvjp(_attend_forward, _attend_backward)


def _share_pairs(
    ids_BT: jax.Array, size: int, other_ids_BT: jax.Array, other_size: int
) -> jax.Array:
    """Returns bool[B, T // size, T // other_size], whether blocks may share a pair.

    They do not if all numbers of pairs of one are below those of the other.
    """

    def bounds(ids_BT: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
        ids = ids_BT.reshape(ids_BT.shape[0], -1, size)
        return ids.min(axis=2), ids.max(axis=2)

    low, high = (x[:, :, None] for x in bounds(ids_BT, size))
    other_low, other_high = (x[:, None, :] for x in bounds(other_ids_BT, other_size))
    return (low <= other_high) & (other_low <= high)


def _ranges(share_BXY: jax.Array) -> jax.Array:
    """Returns int32[B, X, 2], the first True of Y and the position after the last.

    If none is True, as for a block of keys that is all padding, both are 0.
    """
    Y = share_BXY.shape[2]
    first = jnp.argmax(share_BXY, axis=2)
    end = Y - jnp.argmax(share_BXY[:, :, ::-1], axis=2)
    end = jnp.where(jnp.any(share_BXY, axis=2), end, 0)
    return jnp.stack([first, end], axis=2).astype(jnp.int32)


def _attention_forward(options, num_projections, *refs):
    """Computes the context of a block of queries of one head."""
    projections = refs[:num_projections]
    query_ids, key_ids, seeds, keys_Q2, out_ref, log_ref = refs[num_projections:]
    q_TH, k_TH, v_TH = _heads(options, projections, 3 // num_projections)
    (out_TH,), T = _heads(options, (out_ref,)), out_ref.shape[1]
    R, S = FORWARD.of_row(T)
    head, block = pl.program_id(1), pl.program_id(2)
    queries = pl.ds(block * R, R)
    q_RH, ids_R, seed = q_TH[queries], query_ids[0, queries], seeds[0, head]

    def add_keys(i, sums):
        context_RH, max_R, sum_R = sums
        keys = pl.ds(i * S, S)
        k_SH, v_SH, ids_S = k_TH[keys], v_TH[keys], key_ids[0, keys]
        scores_RS = _scores(q_RH, k_SH, ids_R, ids_S)
        new_max_R = jnp.maximum(max_R, jnp.max(scores_RS, axis=1))
        kept_RS = power_RS = _power(
            options, scores_RS, new_max_R[:, None] * options.unit
        )
        shrink_R = _power(options, max_R, new_max_R * options.unit)
        if options.rate:
            query_R1, key_1S = _iota((R, 1), block * R), _iota((1, S), i * S)
            is_kept_RS = _is_kept(query_R1, key_1S, T, seed, options.rate)
            kept_RS = jnp.where(is_kept_RS, power_RS, 0.0)
        context_RH = context_RH * shrink_R[:, None]
        context_RH += _dot(kept_RS.astype(q_RH.dtype), v_SH)
        return context_RH, new_max_R, sum_R * shrink_R + jnp.sum(power_RS, axis=1)

    sums = jnp.zeros(q_RH.shape, jnp.float32), jnp.full(R, 2 * MASKED), jnp.zeros(R)
    context_RH, max_R, sum_R = _for(keys_Q2, block, T // S, add_keys, sums)
    context_RH = context_RH / ((1.0 - options.rate) * sum_R)[:, None]
    out_TH[queries] = context_RH.astype(out_ref.dtype)
    log_ref[0, head, queries] = max_R * options.unit + jnp.log2(sum_R)


def _attention_backward(options, num_projections, *refs):
    """Computes the gradients of the queries, keys and values of one head.

    Those of a block of keys are summed over blocks of queries in registers. Those of
    queries are summed over blocks of keys in memory, in the same order each time.
    """
    inputs = num_projections + 8
    query_ids, key_ids, seeds, out_ref, log_ref, gradient_ref, queries_K2, keys_Q2 = (
        refs[num_projections:inputs]
    )
    parts = 3 // num_projections
    q_TH, k_TH, v_TH = _heads(options, refs[:num_projections], parts)
    gradients = refs[inputs : inputs + num_projections]
    dq_TH, dk_TH, dv_TH = _heads(options, gradients, parts)
    out_TH, gradient_TH = _heads(options, (out_ref, gradient_ref))
    dq_sums = _heads(options, refs[inputs + num_projections :])  # if S < T
    T, H = out_ref.shape[1], options.head_dim
    R, S = BACKWARD.of_row(T)
    head = pl.program_id(1)
    seed, dtype = seeds[0, head], gradient_ref.dtype
    scale, keep_rate = options.scale, 1.0 - options.rate

    def for_keys(j, _):
        keys = pl.ds(j * S, S)
        k_SH, v_SH, ids_S = k_TH[keys], v_TH[keys], key_ids[0, keys]

        # Rows of blocks [S, R] are keys, so that the first factors of the keys' sums
        # are not transposed.
        def add_queries(i, sums):
            dk_SH, dv_SH = sums
            queries = pl.ds(i * R, R)
            q_RH, out_RH = q_TH[queries], out_TH[queries]
            gradient_RH = gradient_TH[queries]
            scores_SR = _scores(k_SH, q_RH, ids_S, query_ids[0, queries])
            log_1R = log_ref[0, head, queries][None, :]
            kept_SR = probs_SR = _power(options, scores_SR, log_1R)
            if options.rate:
                query_1R, key_S1 = _iota((1, R), i * R), _iota((S, 1), j * S)
                is_kept_SR = _is_kept(query_1R, key_S1, T, seed, options.rate)
                kept_SR = jnp.where(is_kept_SR, probs_SR, 0.0)
            # The sum over keys of a probability times its gradient is that over lanes
            # of the context times its gradient.
            product_RH = out_RH.astype(jnp.float32) * gradient_RH.astype(jnp.float32)
            dot_R = jnp.sum(product_RH, axis=1) * keep_rate
            dkept_SR = _dot(v_SH, gradient_RH.T)
            # Too large by 1 / keep_rate, as are all gradients until they are stored.
            dscores_SR = (kept_SR * dkept_SR - probs_SR * dot_R[None, :]).astype(dtype)
            dv_SH += _dot(kept_SR.astype(dtype), gradient_RH)
            dk_SH += _dot(dscores_SR, q_RH)
            add_dq(i, j, _dot(dscores_SR.T, k_SH))
            return dk_SH, dv_SH

        zeros_SH = jnp.zeros((S, H), jnp.float32)
        sums = _for(queries_K2, j, T // R, add_queries, (zeros_SH, zeros_SH))
        dk_TH[keys] = (sums[0] * (scale / keep_rate)).astype(dtype)
        dv_TH[keys] = (sums[1] * (1.0 / keep_rate)).astype(dtype)
        if S < T and not options.interpret:
            triton.debug_barrier()  # other threads read dq_sums for the next keys

    def add_dq(i, j, dq_RH):
        """Adds the gradient from a block of keys; the last one stores the result."""
        queries, factor = pl.ds(i * R, R), scale / keep_rate
        if S == T:
            dq_TH[queries] = (dq_RH * factor).astype(dtype)
            return
        sum_RH, everywhere = dq_sums[0].at(queries), jnp.ones((R, H), bool)
        is_first, is_last = keys_Q2[0, i, 0] == j, keys_Q2[0, i, 1] == j + 1
        dq_RH += triton.load(sum_RH, mask=everywhere & ~is_first, other=0.0)
        triton.store(sum_RH, dq_RH, mask=everywhere & ~is_last)
        dq_RH = (dq_RH * factor).astype(dtype)
        triton.store(dq_TH.at(queries), dq_RH, mask=everywhere & is_last)

    if S == T:
        for_keys(0, None)
    else:
        jax.lax.fori_loop(0, T // S, for_keys, None)


class _Head:
    """A reference to the lanes [T, H] of a head in a reference [1, T, width]."""

    def __init__(self, ref: Any, start: Any, head_dim: int):
        self._ref = ref
        self._lanes = pl.ds(start, head_dim)

    def at(self, rows: Any) -> Any:
        # Emulation of masked loads requires that all indices are arrays.
        return self._ref.at[jnp.int32(0), rows, self._lanes]

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


def _for(
    ranges: Any, block: Any, num_blocks: int, step: Callable[[Any, Any], Any], sums: Any
) -> Any:
    """Adds up over the blocks in ranges[0, block], without a loop if there is one."""
    if num_blocks == 1:
        return step(0, sums)
    return jax.lax.fori_loop(ranges[0, block, 0], ranges[0, block, 1], step, sums)


def _scores(x_RH, y_SH, x_ids_R, y_ids_S):
    """Returns the unscaled scores [R, S] of queries and keys, or the reverse."""
    is_own_RS = x_ids_R[:, None] == y_ids_S[None, :]
    return jnp.where(is_own_RS, _dot(x_RH, y_SH.T), MASKED)


def _power(options, scores, log):
    """Returns the exponential of the scaled scores, divided by 2**log."""
    return jnp.exp2(scores * options.unit - log)  # a single multiply-add


def _iota(shape: tuple[int, int], start: Any) -> jax.Array:
    dim = shape.index(max(shape))
    return start + jax.lax.broadcasted_iota(jnp.int32, shape, dim)


def _is_kept(query, key, T: int, seed, rate: float) -> jax.Array:
    """Returns what `dropout.keep` does with the weights [T, T] of a head."""
    if T & (T - 1):
        return dropout.is_kept(dropout.fold(query * T + key) ^ seed, rate)
    # The bits of a key and of the start of a query's row do not overlap: one operation
    # for each weight instead of four.
    return dropout.is_kept(dropout.fold(query * T) ^ seed ^ key, rate)


def _dot(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.dot(x, y, preferred_element_type=jnp.float32)
