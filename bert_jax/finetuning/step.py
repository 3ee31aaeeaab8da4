"""The fine-tuning step and the forward pass, as pure functions.

training/step.py has the pretraining step.

Shapes: B row of the batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bert_jax.config import OptimizerConfig
from bert_jax.finetuning import distillation, losses
from bert_jax.finetuning.config import FinetuneConfig, RecipeConfig
from bert_jax.model import int8
from bert_jax.model.dropout import DropoutKey
from bert_jax.training import optimizer
from bert_jax.training import step as step_lib
from bert_jax.training.step import Batch, Metrics, TrainState


def make_optimizer(
    recipe: RecipeConfig, learning_rate: Any, num_steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns the optimizer and the learning rate schedule of a run.

    Args:
      recipe: optimizer settings.
      learning_rate: the peak, a Python float or float32[].
      num_steps: total steps of the run.
    """
    warmup_steps = int(recipe.warmup_fraction * num_steps)
    config = OptimizerConfig(
        name=recipe.optimizer,
        schedule="linear",
        schedule_by_phase=False,
        reset_moments_by_phase=False,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        decay_steps=0,
        weight_decay=recipe.weight_decay,
        beta1=recipe.beta1,
        beta2=recipe.beta2,
        epsilon=recipe.epsilon,
        mu_dtype="float32",
        clip_norm=recipe.clip_norm,
    )
    schedule = optimizer.warmup_linear_decay(learning_rate, warmup_steps, num_steps)
    return optimizer.transformation(config, schedule), schedule


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
      config: the fine-tuning config.
      graphdef: structure of the model with its head.
      num_steps: total steps of the run.
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
            total, count = losses.of_task(config.task, outputs, microbatch)
            if teacher is not None:
                teacher_model: Any = nnx.merge(teacher, teacher_params)
                targets = teacher_model(microbatch, dropout_key=None, dtype=dtype)
                total = config.distill.label_weight * total + distillation.loss(
                    config.task.kind, outputs, targets, microbatch, config.distill
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


def make_forward(
    graphdef: nnx.GraphDef, dtype: jnp.dtype
) -> Callable[[Any, Batch], jax.Array]:
    """Returns a jitted function (params, batch) -> float32 logits.

    The logits are replicated on all devices. The parameters are float32, or quantized
    by int8.py.
    """

    def forward(params: Any, batch: Batch) -> jax.Array:
        model: Any = nnx.merge(graphdef, int8.dequantize(params))
        logits = model(batch, dropout_key=None, dtype=dtype).logits
        return jax.reshard(logits, jax.P())

    return jax.jit(forward)


def init_key(seed: int) -> jax.Array:
    """Returns the PRNG key that initializes the head."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def dropout_key(seed: int) -> jax.Array:
    """Returns the PRNG key for dropout."""
    return jax.random.fold_in(jax.random.key(seed), 1)
