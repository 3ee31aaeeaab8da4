"""The two pretraining losses as sums over positions or pairs.

Sums and counts are added up over microbatches and devices, and divided once.

Shapes: B row, P masked position, K sentence pair in a row, V vocabulary.
Source: google-research/bert run_pretraining.py.
"""

import jax
import jax.numpy as jnp


def masked_lm(
    logits_BPV: jax.Array, ids_BP: jax.Array, weights_BP: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the summed cross entropy and the number of correct predictions.

    Args:
      logits_BPV: float32.
      ids_BP: int32, the original tokens.
      weights_BP: float32, 1 for a real masked position, 0 for padding.

    Returns:
      (sum in nats, correct), both float32[].
    """
    return weighted_cross_entropy(logits_BPV, ids_BP, weights_BP)


def next_sentence(
    logits_BK2: jax.Array, labels_BK: jax.Array, weights_BK: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the summed cross entropy and the number of correct predictions.

    Args:
      logits_BK2: float32.
      labels_BK: int32, 0 where B follows A, 1 where B is random.
      weights_BK: float32, 1 for a real pair, 0 for padding.

    Returns:
      (sum in nats, correct), both float32[].
    """
    return weighted_cross_entropy(logits_BK2, labels_BK, weights_BK)


def weighted_cross_entropy(
    logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the summed cross entropy and the number of correct predictions.

    Args:
      logits: float32, classes last.
      labels: int32 of the shape of logits without its last dim.
      weights: float32 of that shape.

    Returns:
      (sum in nats, correct), both float32[].
    """
    # A comparison with the class index instead of a gather: its gradient is
    # elementwise, a gather's is a scatter into the logits.
    classes = jax.lax.broadcasted_iota(
        labels.dtype,
        logits.shape,
        logits.ndim - 1,
        out_sharding=jax.typeof(logits).sharding.spec,
    )
    is_label = classes == labels[..., None]
    label_logits = jnp.sum(jnp.where(is_label, logits, 0.0), axis=-1)
    cross_entropy = jax.nn.logsumexp(logits, axis=-1) - label_logits
    # The logsumexp computes the maximum anyway; argmax would be a second, slower pass.
    correct = label_logits >= jnp.max(logits, axis=-1)
    return (
        jnp.sum(cross_entropy * weights),
        jnp.sum(correct.astype(jnp.float32) * weights),
    )
