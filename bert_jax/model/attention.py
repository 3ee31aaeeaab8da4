"""Multi-head attention within the sentence pairs of a row.

Shapes: as in bert.py.
"""

import jax
import jax.numpy as jnp

from bert_jax.distributed import sharding
from bert_jax.model import attention_kernel
from bert_jax.model.ops import dropout, einsum, einsum_float32

# Lengths of rows and chips with which the kernel takes fewer cycles than the einsums by
# benchmarks/tpu_attention.py. A head's scores of longer rows exceed a core's memory.
KERNEL_LENGTHS = (512,)
KERNEL_CHIPS = ("TPU v4", "TPU v5", "TPU v6", "TPU7x")  # prefixes of device kinds


def attention(
    q_BTD: jax.Array,
    k_BSD: jax.Array,
    v_BSD: jax.Array,
    query_ids_BT: jax.Array,
    key_ids_BS: jax.Array,
    num_heads: int,
    rate: float,
    seed: jax.Array | None,
) -> jax.Array:
    """Returns the context [B, T, D]: each query's mean of the values of its own pair.

    The weights are the softmax of the scaled products of queries and keys. Padding is
    never attended to. A padding query attends to every real token, as in the released
    code, where only keys are masked; nothing reads its context.

    Args:
      q_BTD, k_BSD, v_BSD: the projections, in one dtype; head n holds the lanes
        [n * H, (n + 1) * H) of D.
      query_ids_BT, key_ids_BS: int32, the number of the token's pair in its row, from
        1; 0 for padding.
      num_heads: number of heads.
      rate: dropout rate of the weights.
      seed: uint32[2], or None for no dropout.
    """
    with jax.named_scope("attention"):
        if q_BTD.shape == k_BSD.shape and _has_kernel(q_BTD, num_heads):
            options = attention_kernel.Options(
                q_BTD.shape[2] // num_heads, 0.0 if seed is None else rate
            )
            return attention_kernel.attend(
                q_BTD, k_BSD, v_BSD, query_ids_BT, key_ids_BS, seed, options
            )
        mask_B1TS = attention_mask(query_ids_BT, key_ids_BS)
        return by_einsums(q_BTD, k_BSD, v_BSD, mask_B1TS, num_heads, rate, seed)


def attention_mask(query_ids_BT: jax.Array, key_ids_BS: jax.Array) -> jax.Array:
    """Returns bool[B, 1, T, S], True where a query attends to a key."""
    query_BT1, key_B1S = query_ids_BT[:, :, None], key_ids_BS[:, None, :]
    mask_BTS = ((query_BT1 == key_B1S) | (query_BT1 == 0)) & (key_B1S > 0)
    return mask_BTS[:, None]


def _has_kernel(q_BTD: jax.Array, num_heads: int) -> bool:
    """Returns whether attention_kernel.py can compute this, and does so faster."""
    head_dim = q_BTD.shape[2] // num_heads
    _, _, width = jax.typeof(q_BTD).sharding.shard_shape(q_BTD.shape)
    return (
        sharding.device_kind().startswith(KERNEL_CHIPS)
        and q_BTD.dtype == jnp.bfloat16
        and q_BTD.shape[1] in KERNEL_LENGTHS
        and head_dim in attention_kernel.HEAD_DIMS
        and width % attention_kernel.LANES == 0
    )


def by_einsums(
    q_BTD: jax.Array,
    k_BSD: jax.Array,
    v_BSD: jax.Array,
    mask_B1TS: jax.Array,
    num_heads: int,
    rate: float,
    seed: jax.Array | None,
) -> jax.Array:
    """Returns the context [B, T, D], see `attention`; the mask is `attention_mask`."""
    q_BTNH, k_BSNH, v_BSNH = (_split_heads(x, num_heads) for x in (q_BTD, k_BSD, v_BSD))
    # Softmax is computed in float32: bfloat16 has 8 significant bits, and a row sums up
    # to 512 terms.
    scores_BNTS = q_BTNH.shape[-1] ** -0.5 * einsum_float32(
        "BTNH,BSNH->BNTS", q_BTNH, k_BSNH
    )
    scores_BNTS = jnp.where(mask_B1TS, scores_BNTS, -1e9)
    probs_BNTS = jax.nn.softmax(scores_BNTS, axis=-1).astype(q_BTD.dtype)
    probs_BNTS = dropout(probs_BNTS, rate, seed)
    context_BTNH = einsum("BNTS,BSNH->BTNH", probs_BNTS, v_BSNH)
    return jnp.reshape(
        context_BTNH, q_BTD.shape, out_sharding=sharding.spec("batch", "seq", "heads")
    )


def _split_heads(x_BTD: jax.Array, num_heads: int) -> jax.Array:
    B, T, D = x_BTD.shape
    return jnp.reshape(
        x_BTD,
        (B, T, num_heads, D // num_heads),
        out_sharding=sharding.spec("batch", "seq", "heads", "head_dim"),
    )
