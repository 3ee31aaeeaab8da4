"""The train step and the evaluation step: pure functions of state and batch.

Shapes: B row of the batch, T token.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bert_jax import phases
from bert_jax.config import ExperimentConfig
from bert_jax.distributed import sharding
from bert_jax.model import bert as bert_lib
from bert_jax.model import parameters
from bert_jax.model.dropout import DropoutKey, row_indices
from bert_jax.training import losses, optimizer
from bert_jax.training.losses import Batch, Metrics


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    step: jax.Array  # int32[], steps taken, including skipped updates
    params: Any
    opt_state: Any
    bad_steps: jax.Array  # int32[], steps whose update was skipped
    bad_steps_in_row: jax.Array  # int32[], consecutive ones up to this step
    # With config.optimizer.average_steps: the mean of the parameters over the last
    # steps, like `params`; before those steps, their copy.
    average: Any = None

    @property
    def weights(self) -> Any:
        """The parameters to evaluate and export."""
        return self.params if self.average is None else self.average


def compute_dtype(name: str) -> jnp.dtype:
    """Resolves "auto": bfloat16 on accelerators, float32 on a CPU."""
    if name == "auto":
        on_cpu = sharding.platform() == "cpu"
        return jnp.dtype(jnp.float32 if on_cpu else jnp.bfloat16)
    return jnp.dtype(name)


def init_state(
    config: ExperimentConfig,
) -> tuple[nnx.GraphDef, Callable[[], TrainState]]:
    """Returns the model's graphdef and a function that initializes the state.

    `jax.eval_shape` of the function returns shapes and shardings only. The function is
    not jitted: JAX then compiles one initializer per shape of weights, whereas one
    program for all of them took a GPU 42 s to compile, and a CPU twice as long.
    """
    tx, _ = optimizer.make_optimizer(config)

    def build(key: jax.Array) -> tuple[nnx.GraphDef, nnx.State]:
        return bert_lib.build(config.model, config.tokenizer.vocab_size, key)

    def init() -> TrainState:
        init_key, _ = run_keys(config)
        _, params = build(init_key)
        split = sharding.shard_over_data if config.mesh.shard_optimizer else lambda x: x
        opt_state = jax.jit(lambda params: tx.init(split(params)))(params)
        step, bad_steps, bad_steps_in_row = (jnp.zeros((), jnp.int32) for _ in range(3))
        copied = config.optimizer.average_steps > 0
        average = jax.tree.map(jnp.copy, params) if copied else None
        return TrainState(step, params, opt_state, bad_steps, bad_steps_in_row, average)

    graphdef, _ = parameters.structure(build)
    return graphdef, init


def run_keys(config: ExperimentConfig) -> tuple[jax.Array, jax.Array]:
    """Returns the PRNG keys of weight initialization and of dropout."""
    init_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    return init_key, dropout_key


def make_train_step(
    config: ExperimentConfig, graphdef: nnx.GraphDef
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Returns train_step(state, batch) -> (state, metrics), which is not jitted.

    With config.budget_hours, it has a third argument: float32[], the factor of the
    learning rate that `budget.Budget` plans for the step.

    The loss is a weighted sum of means over all masked positions and all pairs of the
    global batch. It does not depend on the number of microbatches and devices.

    If the loss or the gradient is not finite, the update is skipped: parameters, their
    average, moments and the position in the schedule stay the same, and the step is
    counted in `bad_steps`. The schedule then lags behind the phases by these steps.
    """
    tx, schedule = optimizer.make_optimizer(config)
    dtype = compute_dtype(config.compute_dtype)
    kernel_dtype = _kernel_dtype(config)

    def train_step(
        state: TrainState, batch: Batch, factor: jax.Array | None = None
    ) -> tuple[TrainState, Metrics]:
        _, dropout_key = run_keys(config)
        key = jax.random.fold_in(dropout_key, state.step)
        counts = losses.loss_counts(batch)

        def loss(params: Any, microbatch: Batch, rows_B: jax.Array):
            sums = losses.loss_sums(
                graphdef,
                _with_kernels_as(kernel_dtype, params),
                microbatch,
                config.data.next_sentence,
                dropout_key=DropoutKey(key, rows_B),
                dtype=dtype,
                remat=config.remat,
                z_loss=config.loss_weights.z_loss > 0,
            )
            means = losses.mean_metrics(sums, counts)
            return losses.total_loss(means, config.loss_weights), sums

        grad = jax.grad(loss, has_aux=True)
        grads, sums = accumulate(grad, state.params, batch, config.accumulation_steps)
        if config.optimizer.reset_moments_by_phase:
            state = _with_moments_reset(state, config)
        means = losses.mean_metrics(sums, counts)
        total = losses.total_loss(means, config.loss_weights)
        new_state, update_metrics = apply_gradients(
            tx,
            state,
            grads,
            total,
            shard_optimizer=config.mesh.shard_optimizer,
            factor=factor,
        )
        if state.average is not None:
            new_state = _with_average(new_state, config)
        is_token_BT = batch["sequence_ids"] > 0
        metrics = {
            "loss": total,
            **means,
            "learning_rate": schedule(state.step - state.bad_steps),
            **update_metrics,
            "padding_efficiency": jnp.mean(is_token_BT.astype(jnp.float32)),
        }
        if factor is not None:
            metrics["learning_rate"] *= factor
        return new_state, metrics

    return train_step


def _kernel_dtype(config: ExperimentConfig) -> jnp.dtype:
    """Returns the dtype in which gradients of kernels are summed over devices."""
    # Microbatches are accumulated in float32, and XLA sums over devices after the loop.
    is_accumulated = config.accumulation_steps > 1
    if is_accumulated or compute_dtype(config.compute_dtype) == jnp.float32:
        return jnp.dtype(jnp.float32)
    return jnp.dtype(config.gradient_reduction_dtype)


def _with_kernels_as(dtype: jnp.dtype, params: Any) -> Any:
    """Casts the kernels among the parameters, so that their gradients have this dtype.

    Gradients are summed over devices in the dtype of the products, see ops.py.
    """

    def cast(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        return x.astype(dtype) if parameters.path_name(path).endswith("kernel") else x

    return jax.tree_util.tree_map_with_path(cast, params)


def apply_gradients(
    tx: optax.GradientTransformation,
    state: TrainState,
    grads: Any,
    loss: jax.Array,
    *,
    shard_optimizer: bool,
    factor: jax.Array | None = None,
) -> tuple[TrainState, Metrics]:
    """Returns the state after a step, and the metrics grad_norm and bad_steps_in_row.

    The update is multiplied by `factor`, float32[], and skipped if the loss or a
    gradient is not finite. With `shard_optimizer`, moments and update are sharded over
    the data axis as well (ZeRO-1).
    """
    with jax.named_scope("optimizer"):
        before = state.params
        if shard_optimizer:
            grads, before = map(sharding.shard_over_data, (grads, before))
        grad_norm = optax.tree.norm(grads)
        is_good = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        updates, opt_state = tx.update(grads, state.opt_state, before)
        if factor is not None:
            updates = jax.tree.map(lambda update: update * factor, updates)
        params = optax.apply_updates(before, updates)
        # Elementwise, not a `jax.lax.cond`: it fuses into the update, which reads the
        # old values anyway, and costs no extra pass over memory.
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(is_good, new, old),
            (params, opt_state),
            (before, state.opt_state),
        )
        specs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, state.params)
        params = jax.reshard(params, specs)
    bad_steps_in_row = jnp.where(is_good, 0, state.bad_steps_in_row + 1)
    new_state = dataclasses.replace(
        state,
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        bad_steps=state.bad_steps + jnp.where(is_good, 0, 1),
        bad_steps_in_row=bad_steps_in_row,
    )
    return new_state, {"grad_norm": grad_norm, "bad_steps_in_row": bad_steps_in_row}


def _with_moments_reset(state: TrainState, config: ExperimentConfig) -> TrainState:
    """Resets the moments and their count at the first step of phases 1, 2, ...

    The count is that of the bias correction; the schedule keeps its own.
    """
    is_schedule = lambda x: isinstance(x, optax.ScaleByScheduleState)  # noqa: E731
    with jax.named_scope("optimizer"):
        starts = jnp.array(phases.phase_starts(config)[1:], jnp.int32)
        begins = jnp.any(state.step == starts)
        opt_state = jax.tree.map(
            lambda x: x if is_schedule(x) else jnp.where(begins, jnp.zeros_like(x), x),
            state.opt_state,
            is_leaf=is_schedule,
        )
    return dataclasses.replace(state, opt_state=opt_state)


def _with_average(state: TrainState, config: ExperimentConfig) -> TrainState:
    first = config.num_steps - config.optimizer.average_steps
    # Skipped updates delay the averaged steps, as they delay the schedule.
    count = state.step - state.bad_steps - first
    share = 1.0 / jnp.maximum(count, 1).astype(jnp.float32)
    share = jnp.where(state.bad_steps_in_row > 0, 0.0, share)

    def mean(average: jax.Array, param: jax.Array) -> jax.Array:
        return jnp.where(count > 1, average + share * (param - average), param)

    with jax.named_scope("optimizer"):
        average = jax.tree.map(mean, state.average, state.params)
    return dataclasses.replace(state, average=average)


def make_eval_step(
    config: ExperimentConfig, graphdef: nnx.GraphDef
) -> Callable[[Any, Batch], tuple[Metrics, Metrics]]:
    """Returns eval_step(params, batch) -> (sums, counts), which has no dropout."""
    dtype = compute_dtype(config.compute_dtype)
    next_sentence = config.data.next_sentence

    def eval_step(params: Any, batch: Batch) -> tuple[Metrics, Metrics]:
        sums = losses.loss_sums(
            graphdef, params, batch, next_sentence, dropout_key=None, dtype=dtype
        )
        return sums, losses.loss_counts(batch)

    return eval_step


def accumulate(
    grad: Callable[[Any, Batch, jax.Array], tuple[Any, Metrics]],
    params: Any,
    batch: Batch,
    num: int,
) -> tuple[Any, Metrics]:
    """Accumulates gradients and sums over `num` microbatches in a loop.

    `grad` also gets the indices of a microbatch's rows in the batch, for dropout.
    """
    rows_B = row_indices(len(batch["input_ids"]))
    if num == 1:
        return grad(params, batch, rows_B)

    def split(rows: jax.Array) -> jax.Array:
        # [B, ...] -> [B / num, num, ...]: the microbatch dim comes second, so that
        # every device keeps its rows.
        shape = (rows.shape[0] // num, num, *rows.shape[1:])
        dims = ("batch", *["replicated"] * (len(shape) - 1))
        return jnp.reshape(rows, shape, out_sharding=sharding.spec(*dims))

    microbatches = jax.tree.map(split, (batch, rows_B))

    def grad_of(i: jax.Array) -> tuple[Any, Metrics]:
        return grad(params, *jax.tree.map(lambda rows: rows[:, i], microbatches))

    # The loop starts from zeros: a first microbatch outside of it would be a second
    # copy of the program with its own sum over devices, while XLA moves the sum of the
    # loop to after the loop.
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype, out_sharding=x.sharding),
        jax.eval_shape(grad_of, 0),
    )
    return jax.lax.fori_loop(
        0, num, lambda i, total: jax.tree.map(jnp.add, total, grad_of(i)), zeros
    )
