"""What a small model is taught by a large one: its logits and its states.

Source: Hinton et al. 2015 for logits; for states, every layer of the student follows
the teacher's layer as far up as it, as in Sun et al. 2019 and Jiao et al. 2020.

Shapes: B example of the batch, R row: B, or each of the rows of an example in turn,
T token, C class, D hidden.
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
    """Returns float32[], a sum over what losses.py sums over for the kind.

    Args:
      kind: of the head of both.
      student, teacher: what they make of the batch.
      batch: as of losses.py.
      config: with the weights.
    """
    total = jnp.float32(0.0)
    if config.logits_weight:
        temperature = config.temperature
        scores = logits_distance(kind, student.logits, teacher.logits, temperature)
        total += config.logits_weight * jnp.sum(scores * _weights(kind, batch))
    if config.states_weight:
        far_B = states_distance(student.states, teacher.states, batch)
        count_B = _counts(kind, student.logits, batch)
        total += config.states_weight * jnp.sum(far_B * count_B)
    return total


def logits_distance(
    kind: str, student: jax.Array, teacher: jax.Array, temperature: float
) -> jax.Array:
    """Returns how far logits are from the teacher's, as losses.py counts labels.

    That is [B] of examples, [B, T] of tags and [B, C] of sets of classes. Numbers
    differ by their square; distributions by Kullback and Leibler's divergence in nats
    at the temperature, times its square, so that gradients keep their size.
    """
    if kind in ("regression", "similarity"):
        squares = jnp.square(student - teacher)
        return squares if kind == "similarity" else squares[:, 0]
    student, teacher = student / temperature, teacher / temperature
    if kind == "multi_label":
        student, teacher = _of_two(student), _of_two(teacher)
    if kind == "question_answering":  # each of both ends chooses a token
        student, teacher = jnp.moveaxis(student, 2, 1), jnp.moveaxis(teacher, 2, 1)
    wanted = jax.nn.softmax(teacher, axis=-1)
    found = jax.nn.log_softmax(teacher, axis=-1) - jax.nn.log_softmax(student, axis=-1)
    far = jnp.sum(wanted * found, axis=-1) * temperature**2
    return jnp.mean(far, axis=1) if kind == "question_answering" else far


def states_distance(
    student: Sequence[jax.Array], teacher: Sequence[jax.Array], batch: Batch
) -> jax.Array:
    """Returns float32[B], the mean square over layers, tokens and dims.

    Args:
      student: [R, T, D] of the embeddings and after each of n layers.
      teacher: the same of L layers; the student's layer i follows the layer i L / n,
        rounded down.
      batch: int32[B, T] or [B, C, T] sequence_ids.
    """
    num_layers, num_taught = len(student) - 1, len(teacher) - 1
    ids = batch["sequence_ids"]
    by_row = sharding.spec("batch", "replicated")
    rows = (ids.size // ids.shape[-1], ids.shape[-1])
    is_real_RT = (jnp.reshape(ids, rows, out_sharding=by_row) > 0).astype(jnp.float32)
    far_R = jnp.zeros_like(is_real_RT[:, 0])
    for i in range(1, num_layers + 1):
        x_RTD = student[i].astype(jnp.float32)
        y_RTD = teacher[i * num_taught // num_layers].astype(jnp.float32)
        # Of [CLS] alone after the last layer, where the head reads no other.
        length = min(x_RTD.shape[1], y_RTD.shape[1])
        far_RT = jnp.mean(jnp.square(x_RTD[:, :length] - y_RTD[:, :length]), axis=2)
        weight_RT = is_real_RT[:, :length]
        far_R += jnp.sum(far_RT * weight_RT, axis=1) / jnp.sum(weight_RT, axis=1)
    B = ids.shape[0]
    far_BC = jnp.reshape(far_R, (B, rows[0] // B), out_sharding=by_row)
    return jnp.mean(far_BC, axis=1) / num_layers


def _of_two(logits_BC: jax.Array) -> jax.Array:
    """Returns [B, C, 2], of a class and of its absence."""
    return jnp.stack([logits_BC, jnp.zeros_like(logits_BC)], axis=-1)


def _weights(kind: str, batch: Batch) -> jax.Array:
    """Returns float32[B, T] of tags, [B, 1] of sets of classes, else [B]."""
    if kind == "tagging":
        return losses.tag_weights(batch)
    return batch["weights"][:, None] if kind == "multi_label" else batch["weights"]


def _counts(kind: str, logits: jax.Array, batch: Batch) -> jax.Array:
    """Returns float32[B], what losses.py counts of each example."""
    if kind == "tagging":
        return jnp.sum(losses.tag_weights(batch), axis=1)
    num_classes = logits.shape[1] if kind == "multi_label" else 1
    return num_classes * batch["weights"]
