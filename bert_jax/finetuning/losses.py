"""Task losses, each returned as a sum and the count to divide it by.

As in training/losses.py, sums and counts are kept together and divided once. A row of
weight 0 pads the batch and contributes to neither.

Shapes: B example of the batch, C class or choice, T token.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.finetuning.config import SimilarityTask, Task
from bert_jax.model import heads
from bert_jax.training.losses import weighted_cross_entropy

Batch = dict[str, jax.Array]
SumAndCount = tuple[jax.Array, jax.Array]  # both float32[]
IGNORED = -100  # the label of tokens that the loss ignores, as in PyTorch


def classification(logits_BC: jax.Array, batch: Batch) -> SumAndCount:
    """Returns the summed cross entropy in nats and the number of examples.

    This is also the loss of multiple choice.

    Args:
      logits_BC: float32.
      batch: int32[B] labels, float32[B] weights.
    """
    weights_B = batch["weights"]
    total, _ = weighted_cross_entropy(logits_BC, batch["labels"], weights_B)
    return total, jnp.sum(weights_B)


def regression(logits_B1: jax.Array, batch: Batch) -> SumAndCount:
    """Returns the sum of squared errors and the number of examples.

    Args:
      logits_B1: float32.
      batch: float32[B] labels and weights.
    """
    weights_B = batch["weights"]
    errors_B = jnp.square(logits_B1[:, 0] - batch["labels"])
    return jnp.sum(errors_B * weights_B), jnp.sum(weights_B)


def multi_label(logits_BC: jax.Array, batch: Batch) -> SumAndCount:
    """Returns the summed binary cross entropy in nats and the number of decisions.

    Each class of each example is one decision.

    Args:
      logits_BC: float32.
      batch: float32[B, C] labels, each 0 or 1; float32[B] weights.
    """
    # Equals -y log sigmoid(x) - (1 - y) log sigmoid(-x), but avoids cancellation.
    losses_BC = jax.nn.softplus(logits_BC) - logits_BC * batch["labels"]
    weights_B1 = batch["weights"][:, None]
    num_classes = logits_BC.shape[1]
    return jnp.sum(losses_BC * weights_B1), num_classes * jnp.sum(weights_B1)


def tagging(logits_BTC: jax.Array, batch: Batch) -> SumAndCount:
    """Returns the summed cross entropy in nats and the number of labelled tokens.

    Args:
      logits_BTC: float32.
      batch: int32[B, T] labels, IGNORED for unlabelled tokens; float32[B] weights.
    """
    weights_BT = tag_weights(batch)
    labels_BT = jnp.maximum(batch["labels"], 0)
    total, _ = weighted_cross_entropy(logits_BTC, labels_BT, weights_BT)
    return total, jnp.sum(weights_BT)


def tag_weights(batch: Batch) -> jax.Array:
    """Returns float32[B, T], the row's weight for labelled tokens and 0 for others."""
    has_label_BT = (batch["labels"] != IGNORED).astype(jnp.float32)
    return has_label_BT * batch["weights"][:, None]


def question_answering(logits_BT2: jax.Array, batch: Batch) -> SumAndCount:
    """Returns the summed cross entropy in nats and the number of windows.

    The cross entropy of a window is the mean of those of its start and end positions.
    Padding positions are among the classes, as in the released code.

    Args:
      logits_BT2: float32.
      batch: int32[B] start_positions and end_positions, float32[B] weights.
    """
    weights_B = batch["weights"]
    start, _ = weighted_cross_entropy(
        logits_BT2[:, :, 0], batch["start_positions"], weights_B
    )
    end, _ = weighted_cross_entropy(
        logits_BT2[:, :, 1], batch["end_positions"], weights_B
    )
    return (start + end) / 2, jnp.sum(weights_B)


def similarity(cosines_B: jax.Array, batch: Batch) -> SumAndCount:
    """Returns the sum of squared errors and the number of pairs.

    Args:
      cosines_B: float32.
      batch: float32[B] labels (the target cosines) and weights.
    """
    return regression(cosines_B[:, None], batch)


def contrastive(unit_B2D: jax.Array, batch: Batch, temperature: float) -> SumAndCount:
    """Returns the summed cross entropy in nats and the number of pairs.

    The classes of a first text are the second texts of the batch, and the right one is
    its own. The logits are cosines over the temperature.

    Source: Henderson et al. 2017, "Efficient Natural Language Response Suggestion",
    section 4.4; Gao et al. 2021, "SimCSE", equation 1.

    Args:
      unit_B2D: float32 embeddings of length 1.
      batch: float32[B] weights. Texts of weight 0 are no classes.
      temperature: the temperature.
    """
    second_BD = jax.reshard(unit_B2D[:, 1], jax.P())  # of all devices
    cosines_BB = jnp.einsum(
        "bd,cd->bc", unit_B2D[:, 0], second_BD, precision=jax.lax.Precision.HIGHEST
    )
    is_class_B = jax.reshard(batch["weights"], jax.P()) > 0
    logits_BB = jnp.where(is_class_B, cosines_BB / temperature, -1e9)
    weights_B = batch["weights"]
    labels_B = jnp.arange(len(unit_B2D), out_sharding=jax.typeof(weights_B).sharding)
    total, _ = weighted_cross_entropy(logits_BB, labels_B, weights_B)
    return total, jnp.sum(weights_B)


# Keyed by the kind of head, see heads.py.
LOSSES: dict[str, Callable[[jax.Array, Batch], SumAndCount]] = {
    "classification": classification,
    "regression": regression,
    "multi_label": multi_label,
    "tagging": tagging,
    "question_answering": question_answering,
    "multiple_choice": classification,
    "similarity": similarity,
}


def of_task(task: Task, outputs: heads.Outputs, batch: Batch) -> SumAndCount:
    """Returns the loss of a task for the outputs of its head."""
    if isinstance(task, SimilarityTask) and task.positives:
        unit_B2D = heads.embeddings(outputs.states[-1], batch["sequence_ids"])
        return contrastive(unit_B2D, batch, task.temperature)
    return LOSSES[task.kind](outputs.logits, batch)
