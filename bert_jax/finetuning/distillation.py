"""Distillation losses: distances of a student's logits and states from a teacher's.

Sources: Hinton et al. 2015 for logits; Sun et al. 2019 and Jiao et al. 2020 for hidden
states, where each layer of the student is matched to the layer of the teacher at the
same relative depth.

Shapes: B example of the batch, R row (one or more per example, in order), T token,
C class, D hidden.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.distributed import sharding
from bert_jax.finetuning import losses
from bert_jax.finetuning.config import DistillConfig
from bert_jax.model.heads import Outputs

Batch = dict[str, jax.Array]


def loss(
    kind: str, student: Outputs, teacher: Outputs, batch: Batch, config: DistillConfig
) -> jax.Array:
    """Returns the weighted sum of the distillation losses, float32[].

    The sum runs over the same terms as the loss of this kind in losses.py, so both are
    divided by the same count.

    Args:
      kind: kind of both models' heads.
      student, teacher: outputs of the two models for the batch.
      batch: the batch, as in losses.py.
      config: weights and temperature.
    """
    total = jnp.float32(0.0)
    if config.logits_weight:
        temperature = config.temperature
        scores = logits_distance(kind, student.logits, teacher.logits, temperature)
        total += config.logits_weight * jnp.sum(scores * _weights(kind, batch))
    if config.states_weight:
        distance_B = states_distance(student.states, teacher.states, batch)
        count_B = _counts(kind, student.logits, batch)
        total += config.states_weight * jnp.sum(distance_B * count_B)
    return total


def logits_distance(
    kind: str, student: jax.Array, teacher: jax.Array, temperature: float
) -> jax.Array:
    """Returns the distance of logits from the teacher's, one for each labelled item.

    Regression and similarity use the squared difference. The other kinds use the
    Kullback-Leibler divergence in nats at the temperature, times the temperature
    squared, which keeps the size of gradients.

    Returns:
      float32[B], or [B, T] for tagging and [B, C] for multi_label.
    """
    if kind in ("regression", "similarity"):
        squares = jnp.square(student - teacher)
        return squares if kind == "similarity" else squares[:, 0]
    student, teacher = student / temperature, teacher / temperature
    if kind == "multi_label":
        student, teacher = _binary_logits(student), _binary_logits(teacher)
    if kind == "question_answering":  # start and end are distributions over tokens
        student, teacher = jnp.moveaxis(student, 2, 1), jnp.moveaxis(teacher, 2, 1)
    probs = jax.nn.softmax(teacher, axis=-1)
    ratios = jax.nn.log_softmax(teacher, axis=-1) - jax.nn.log_softmax(student, axis=-1)
    divergence = jnp.sum(probs * ratios, axis=-1) * temperature**2
    if kind == "question_answering":
        return jnp.mean(divergence, axis=1)
    return divergence


def states_distance(
    student: Sequence[jax.Array], teacher: Sequence[jax.Array], batch: Batch
) -> jax.Array:
    """Returns float32[B], the mean squared difference over layers, tokens and dims.

    Args:
      student: [R, T, D] states of the embeddings and after each of n layers.
      teacher: the same for L layers; layer i of the student is matched to layer
        floor(i L / n).
      batch: int32[B, T] or [B, C, T] sequence_ids.
    """
    num_layers, num_teacher_layers = len(student) - 1, len(teacher) - 1
    ids = batch["sequence_ids"]
    by_row = sharding.spec("batch", "replicated")
    rows = (ids.size // ids.shape[-1], ids.shape[-1])
    is_real_RT = (jnp.reshape(ids, rows, out_sharding=by_row) > 0).astype(jnp.float32)
    distance_R = jnp.zeros_like(is_real_RT[:, 0])
    for i in range(1, num_layers + 1):
        x_RTD = student[i].astype(jnp.float32)
        y_RTD = teacher[i * num_teacher_layers // num_layers].astype(jnp.float32)
        # The last layer has the state of [CLS] only, if the head reads only that one.
        length = min(x_RTD.shape[1], y_RTD.shape[1])
        error_RT = jnp.mean(jnp.square(x_RTD[:, :length] - y_RTD[:, :length]), axis=2)
        weight_RT = is_real_RT[:, :length]
        distance_R += jnp.sum(error_RT * weight_RT, axis=1) / jnp.sum(weight_RT, axis=1)
    B = ids.shape[0]
    distance_BC = jnp.reshape(distance_R, (B, rows[0] // B), out_sharding=by_row)
    return jnp.mean(distance_BC, axis=1) / num_layers


def _binary_logits(logits_BC: jax.Array) -> jax.Array:
    """Returns [B, C, 2], the logits of each class's presence and absence."""
    return jnp.stack([logits_BC, jnp.zeros_like(logits_BC)], axis=-1)


def _weights(kind: str, batch: Batch) -> jax.Array:
    """Returns float32[B], or [B, T] for tagging and [B, 1] for multi_label."""
    if kind == "tagging":
        return losses.tag_weights(batch)
    return batch["weights"][:, None] if kind == "multi_label" else batch["weights"]


def _counts(kind: str, logits: jax.Array, batch: Batch) -> jax.Array:
    """Returns float32[B], each example's share of the count in losses.py."""
    if kind == "tagging":
        return jnp.sum(losses.tag_weights(batch), axis=1)
    num_classes = logits.shape[1] if kind == "multi_label" else 1
    return num_classes * batch["weights"]
