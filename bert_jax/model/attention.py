"""Multi-head attention within the sentence pairs of a row.

Shapes: as in bert.py.
"""

import jax
import jax.numpy as jnp

from bert_jax.distributed import sharding
from bert_jax.model.dropout import Seed, keep
from bert_jax.model.kernels import Options, gpu
from bert_jax.model.ops import einsum, einsum_float32

# Prefixes of the kinds of TPUs, and lengths of rows, with which the kernel takes fewer
# cycles than the einsums, see docs/performance.md. A head's scores of longer rows
# exceed a core's memory.
TPUS = ("TPU v4", "TPU v5", "TPU v6")
TPU_LENGTHS = (512,)


def attention(
    projections: tuple[jax.Array, ...],
    query_ids_BT: jax.Array,
    key_ids_BS: jax.Array,
    num_heads: int,
    rate: float,
    seed: Seed | None,
) -> jax.Array:
    """Returns the context [B, T, D]: each query's mean of the values of its own pair.

    The weights are the softmax of the scaled products of queries and keys. Padding is
    never attended to. A padding query attends to every real token, as in the released
    code, where only keys are masked; nothing reads its context.

    Args:
      projections: queries [B, T, D], keys and values [B, S, D], or one array
        [B, T, 3D] of all; head n holds the lanes [n * H, (n + 1) * H) of D.
      query_ids_BT, key_ids_BS: int32, the number of the token's pair in its row, from
        1; 0 for padding.
      seed: None for no dropout.
    """
    with jax.named_scope("attention"):
        rate = 0.0 if seed is None else rate
        head_dim = projections[0].shape[2] * len(projections) // (3 * num_heads)
        options = Options(head_dim, rate)
        is_square = query_ids_BT.shape == key_ids_BS.shape
        if is_square and gpu.has_kernels(projections[0]):
            from bert_jax.model.kernels import attention_gpu

            if head_dim in attention_gpu.HEAD_DIMS:
                return attention_gpu.attend(
                    projections, query_ids_BT, key_ids_BS, seed, options
                )
        if len(projections) == 1:
            projections = tuple(jnp.split(projections[0], 3, axis=-1))
        q_BTD, k_BSD, v_BSD = projections
        if is_square and _has_tpu_kernel(q_BTD, head_dim):
            from bert_jax.model.kernels import attention_tpu

            return attention_tpu.attend(
                q_BTD, k_BSD, v_BSD, query_ids_BT, key_ids_BS, seed, options
            )
        mask_B1TS = attention_mask(query_ids_BT, key_ids_BS)
        return by_einsums(q_BTD, k_BSD, v_BSD, mask_B1TS, num_heads, rate, seed)


def attention_mask(query_ids_BT: jax.Array, key_ids_BS: jax.Array) -> jax.Array:
    """Returns bool[B, 1, T, S], True where a query attends to a key."""
    query_BT1, key_B1S = query_ids_BT[:, :, None], key_ids_BS[:, None, :]
    mask_BTS = ((query_BT1 == key_B1S) | (query_BT1 == 0)) & (key_B1S > 0)
    return mask_BTS[:, None]


def _has_tpu_kernel(q_BTD: jax.Array, head_dim: int) -> bool:
    """Returns whether kernels/attention_tpu.py computes this, and does so faster."""
    if not (
        sharding.device_kind().startswith(TPUS)
        and q_BTD.dtype == jnp.bfloat16
        and q_BTD.shape[1] in TPU_LENGTHS
    ):
        return False
    from bert_jax.model.kernels import attention_tpu

    _, _, width = jax.typeof(q_BTD).sharding.shard_shape(q_BTD.shape)
    return head_dim in attention_tpu.HEAD_DIMS and width % attention_tpu.LANES == 0


def by_einsums(
    q_BTD: jax.Array,
    k_BSD: jax.Array,
    v_BSD: jax.Array,
    mask_B1TS: jax.Array,
    num_heads: int,
    rate: float,
    seed: Seed | None,
) -> jax.Array:
    """Returns the context [B, T, D], see `attention`; the mask is `attention_mask`."""
    scale = (q_BTD.shape[-1] // num_heads) ** -0.5  # a power of 2 for heads of 64
    q_BTNH, k_BSNH, v_BSNH = (
        _split_heads(x, num_heads) for x in (scale * q_BTD, k_BSD, v_BSD)
    )
    rate = 0.0 if seed is None else rate
    context_BTNH = _with_gradient(q_BTNH, k_BSNH, v_BSNH, mask_B1TS, seed, rate)
    out = sharding.spec("batch", "seq", "heads")
    return jnp.reshape(context_BTNH, q_BTD.shape, out_sharding=out)


def _context(
    q_BTNH: jax.Array,
    k_BSNH: jax.Array,
    v_BSNH: jax.Array,
    mask_B1TS: jax.Array,
    seed: Seed | None,
    rate: float,
) -> jax.Array:
    """Returns the context [B, T, N, H] of scaled queries, see `attention`.

    Exponentials are not divided by their sum. The context is, which has fewer elements,
    and by the share that dropout keeps. The exponentials, in the dtype of the products,
    are the only array [B, N, T, S] that is stored for the gradient. With JAX's gradient
    of a softmax, attention at 512 tokens took 1.2 times as long on a CPU, and 1.5 times
    the memory; on a v5e it took 1.9 times the cycles, by the compiler's schedule.
    """
    return _context_forward(q_BTNH, k_BSNH, v_BSNH, mask_B1TS, seed, rate)[0]


def _context_forward(q_BTNH, k_BSNH, v_BSNH, mask_B1TS, seed, rate):
    dtype = q_BTNH.dtype
    # Exponentials are summed in float32: bfloat16 has 8 significant bits, and a row
    # sums up to 512 terms.
    scores_BNTS = einsum_float32("BTNH,BSNH->BNTS", q_BTNH, k_BSNH)
    scores_BNTS = jnp.where(mask_B1TS, scores_BNTS, -1e9)
    exp_BNTS = jnp.exp(scores_BNTS - jnp.max(scores_BNTS, axis=-1, keepdims=True))
    sum_BTN1 = jnp.swapaxes(jnp.sum(exp_BNTS, axis=-1), 1, 2)[..., None]
    exp_BNTS = exp_BNTS.astype(dtype)
    context_BTNH = einsum_float32("BNTS,BSNH->BTNH", keep(exp_BNTS, rate, seed), v_BSNH)
    context_BTNH = (context_BTNH / ((1 - rate) * sum_BTN1)).astype(dtype)
    return context_BTNH, (
        (q_BTNH, k_BSNH, v_BSNH, mask_B1TS, seed),
        (exp_BNTS, sum_BTN1, context_BTNH),
    )


def _context_backward(rate, saved, gradient_BTNH):
    (q_BTNH, k_BSNH, v_BSNH, _, seed), (exp_BNTS, sum_BTN1, context_BTNH) = saved
    dtype, float32 = q_BTNH.dtype, jnp.float32
    # The gradient of the context before it is divided by the sum.
    gradient_BTNH = gradient_BTNH.astype(float32) / sum_BTN1
    sum_gradient_BTN = -jnp.sum(gradient_BTNH * context_BTNH.astype(float32), axis=-1)
    gradient_BTNH = (gradient_BTNH / (1 - rate)).astype(dtype)
    v_gradient = einsum("BNTS,BTNH->BSNH", keep(exp_BNTS, rate, seed), gradient_BTNH)
    exp_gradient = einsum_float32("BTNH,BSNH->BNTS", gradient_BTNH, v_BSNH)
    exp_gradient = keep(exp_gradient, rate, seed)
    exp_gradient += jnp.swapaxes(sum_gradient_BTN, 1, 2)[..., None]
    scores_gradient = (exp_BNTS.astype(float32) * exp_gradient).astype(dtype)
    q_gradient = einsum("BNTS,BSNH->BTNH", scores_gradient, k_BSNH)
    k_gradient = einsum("BNTS,BTNH->BSNH", scores_gradient, q_BTNH)
    return q_gradient, k_gradient, v_gradient, None, None


_with_gradient = jax.custom_vjp(_context, nondiff_argnums=(5,))
_with_gradient.defvjp(_context_forward, _context_backward)


def _split_heads(x_BTD: jax.Array, num_heads: int) -> jax.Array:
    B, T, D = x_BTD.shape
    out = sharding.spec("batch", "seq", "heads", "head_dim")
    return jnp.reshape(x_BTD, (B, T, num_heads, D // num_heads), out_sharding=out)
