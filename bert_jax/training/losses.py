"""The joint masked-LM and next-sentence loss, from sums over positions and pairs.

Sums and counts are added up over microbatches and devices, and divided once.

Shapes: B row, P masked position, K sentence pair in a row, V vocabulary.
Source: google-research/bert run_pretraining.py.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import LossWeightsConfig
from bert_jax.model.dropout import DropoutKey

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


def loss_sums(
    graphdef: nnx.GraphDef,
    params: Any,
    batch: Batch,
    next_sentence: bool,
    *,
    dropout_key: DropoutKey | None,
    dtype: jnp.dtype,
    remat: str = "none",
    z_loss: bool = False,
) -> Metrics:
    """Returns summed losses and numbers of correct predictions, float32[] each.

    The batch is global or a microbatch. Without a key, there is no dropout. With
    `z_loss`, z_loss is the sum of the squared logarithms of the masked-LM partition
    functions.
    """
    bert = nnx.merge(graphdef, params)
    masked_lm_BPV, next_sentence_BK2 = bert(
        batch, dropout_key=dropout_key, dtype=dtype, remat=remat
    )
    loss, correct = weighted_cross_entropy(
        masked_lm_BPV, batch["masked_lm_ids"], batch["masked_lm_weights"]
    )
    sums = {"masked_lm_loss": loss, "masked_lm_accuracy": correct}
    if z_loss:
        log_z_BP = jax.nn.logsumexp(masked_lm_BPV, axis=-1)
        sums["z_loss"] = jnp.sum(log_z_BP**2 * batch["masked_lm_weights"])
    if next_sentence:
        loss, correct = weighted_cross_entropy(
            next_sentence_BK2,
            batch["next_sentence_labels"],
            batch["next_sentence_weights"],
        )
        sums |= {"next_sentence_loss": loss, "next_sentence_accuracy": correct}
    return sums


def loss_counts(batch: Batch) -> Metrics:
    """Returns the number of terms in each of `loss_sums`, float32[] each."""
    names = "masked_lm_loss", "masked_lm_accuracy", "z_loss"
    counts = dict.fromkeys(names, jnp.sum(batch["masked_lm_weights"]))
    pairs = jnp.sum(batch["next_sentence_weights"])
    return counts | {"next_sentence_loss": pairs, "next_sentence_accuracy": pairs}


def mean_metrics(sums: Metrics, counts: Metrics) -> Metrics:
    # The released code adds 1e-5 to counts, which keeps a batch without masks finite
    # but changes every accuracy. Counts are whole numbers, so the maximum does not.
    return {name: sums[name] / jnp.maximum(counts[name], 1.0) for name in sums}


def total_loss(means: Mapping[str, Any], weights: LossWeightsConfig) -> Any:
    """Returns the weighted sum of those mean losses that there are."""
    total = weights.masked_lm * means["masked_lm_loss"]
    if "next_sentence_loss" in means:
        total += weights.next_sentence * means["next_sentence_loss"]
    if "z_loss" in means:
        total += weights.z_loss * means["z_loss"]
    return total


@jax.named_scope("loss")
def weighted_cross_entropy(
    logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the summed cross entropy, in nats, and the number of correct predictions.

    Logits are float32[..., classes], labels int32[...] and weights float32[...], 0 for
    padding.
    """
    label_logits = logits_of(logits, labels)
    cross_entropy = jax.nn.logsumexp(logits, axis=-1) - label_logits
    # The logsumexp computes the maximum anyway; argmax would be a second, slower pass.
    correct = label_logits >= jnp.max(logits, axis=-1)
    return (
        jnp.sum(cross_entropy * weights),
        jnp.sum(correct.astype(jnp.float32) * weights),
    )


def logits_of(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the logit of each label; shapes as in `weighted_cross_entropy`."""
    # A comparison with the class index instead of a gather: its gradient is
    # elementwise, a gather's is a scatter into the logits.
    classes = jax.lax.broadcasted_iota(
        labels.dtype,
        logits.shape,
        logits.ndim - 1,
        out_sharding=jax.typeof(logits).sharding.spec,
    )
    is_label = classes == labels[..., None]
    return jnp.sum(jnp.where(is_label, logits, 0.0), axis=-1)
