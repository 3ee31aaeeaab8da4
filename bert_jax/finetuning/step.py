"""The fine-tuning step, as a pure function.

training/step.py has the pretraining step.

Sources of distillation: Hinton et al. 2015 for logits; Sun et al. 2019 and Jiao et al.
2020 for hidden states, where each layer of the student is matched to the layer of the
teacher at the same relative depth.

Shapes: B example of the batch, R row (one or more per example, in order), T token,
D hidden.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bert_jax.distributed import sharding
from bert_jax.finetuning.config import DistillConfig, FinetuneConfig, RecipeConfig
from bert_jax.finetuning.tasks.base import Task
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.heads import Outputs
from bert_jax.training import optimizer
from bert_jax.training import step as step_lib
from bert_jax.training.step import Batch, Metrics, TrainState


def run_keys(seed: int) -> tuple[jax.Array, jax.Array]:
    """Returns the keys of a run: of the head's initial weights, and of dropout."""
    key = jax.random.key(seed)
    return jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)


def make_optimizer(
    recipe: RecipeConfig, learning_rate: Any, num_steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns the optimizer and the schedule of a run; `learning_rate` is the peak."""
    warmup_steps = int(recipe.warmup_fraction * num_steps)
    schedule = optimizer.warmup_linear_decay(learning_rate, warmup_steps, num_steps)
    return optimizer.transformation(recipe.optimizer, recipe, schedule), schedule


def make_train_step(
    config: FinetuneConfig,
    graphdef: nnx.GraphDef,
    num_steps: int,
    teacher: nnx.GraphDef | None = None,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Returns the train step for a run of `num_steps`, to be jitted by the caller.

    The step is train_step(state, batch, learning_rate, key, teacher_params) -> (state,
    metrics). The peak learning rate is an argument, float32[], and `key` is folded with
    the step number, so that all runs of a sweep share one compiled program.

    The loss is the mean over all labelled items of the batch, for any number of
    microbatches and devices. A step with a non-finite loss or gradient leaves the
    parameters unchanged, as in training/step.py.

    Args:
      teacher: structure of the teacher, whose parameters are `teacher_params`; None to
        train without distillation.
    """
    dtype = step_lib.compute_dtype(config.compute_dtype)

    def train_step(
        state: TrainState,
        batch: Batch,
        learning_rate: jax.Array,
        key: jax.Array,
        teacher_params: Any = None,
    ) -> tuple[TrainState, Metrics]:
        tx, schedule = make_optimizer(config.recipe, learning_rate, num_steps)
        key = jax.random.fold_in(key, state.step)

        def loss_sum(params: Any, microbatch: Batch, rows_B: jax.Array):
            model: Any = nnx.merge(graphdef, params)
            outputs = model(
                microbatch,
                dropout_key=DropoutKey(key, rows_B),
                dtype=dtype,
                remat=config.remat,
            )
            total, count = config.task.loss(outputs, microbatch)
            if teacher is not None:
                teacher_model: Any = nnx.merge(teacher, teacher_params)
                targets = teacher_model(microbatch, dropout_key=None, dtype=dtype)
                total = config.distill.label_weight * total + distillation_loss(
                    config.task, outputs, targets, microbatch, config.distill
                )
            return total, {"loss": total, "count": count}

        grad = jax.grad(loss_sum, has_aux=True)
        grads, sums = step_lib.accumulate(
            grad, state.params, batch, config.accumulation_steps
        )
        count = jnp.maximum(sums["count"], 1.0)
        loss = sums["loss"] / count
        new_state, update_metrics = step_lib.apply_gradients(
            tx,
            state,
            jax.tree.map(lambda g: g / count, grads),
            loss,
            shard_optimizer=config.mesh.shard_optimizer,
        )
        rate = schedule(state.step - state.bad_steps)
        metrics = {"loss": loss, "learning_rate": rate, **update_metrics}
        return new_state, metrics

    return train_step


def distillation_loss(
    task: Task, student: Outputs, teacher: Outputs, batch: Batch, config: DistillConfig
) -> jax.Array:
    """Returns the weighted sum of the distillation losses, float32[].

    The sum runs over the same terms as the task's loss, so both are divided by the same
    count.
    """
    total = jnp.float32(0.0)
    scores, weights = task.distances(
        student.logits, teacher.logits, batch, config.temperature
    )
    if config.logits_weight:
        total += config.logits_weight * jnp.sum(scores * weights)
    if config.states_weight:
        distance_B = states_distance(student.states, teacher.states, batch)
        # The number of terms of each example.
        terms = weights * jnp.ones_like(scores)
        count_B = jnp.sum(terms, axis=tuple(range(1, scores.ndim)))
        total += config.states_weight * jnp.sum(distance_B * count_B)
    return total


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
