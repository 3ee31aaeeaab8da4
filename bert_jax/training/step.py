"""One step of training and one of evaluation: pure functions of state and batch.

Shapes: B row of the batch, A microbatch, P masked position, K sentence pair in a row.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bert_jax import phases
from bert_jax.config import ExperimentConfig, LossWeightsConfig, PhaseConfig
from bert_jax.distributed import sharding
from bert_jax.model import bert as bert_lib
from bert_jax.model import parameters
from bert_jax.training import losses, optimizer

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]
T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    step: jax.Array  # int32[], batches seen
    params: Any
    opt_state: Any
    bad_steps: jax.Array  # int32[], steps whose update was skipped
    bad_steps_in_row: jax.Array  # int32[], the last ones


def compute_dtype(name: str) -> jnp.dtype:
    """Returns the dtype of activations by its name; "auto": what the chips like."""
    if name == "auto":
        on_cpu = sharding.platform() == "cpu"
        return jnp.dtype(jnp.float32 if on_cpu else jnp.bfloat16)
    return jnp.dtype(name)


def init_state(
    config: ExperimentConfig, tx: optax.GradientTransformation
) -> tuple[nnx.GraphDef, Callable[[], TrainState]]:
    """Returns the model's structure and a function that makes the first state.

    The function can also be asked for shapes and layouts alone, by `jax.eval_shape`.
    It is not jitted: JAX then compiles one draw for each shape of weights, where one
    program of them all took a GPU 42 s to compile, and a CPU twice as long.
    """

    def build(key: jax.Array) -> tuple[nnx.GraphDef, nnx.State]:
        return bert_lib.build(config.model, config.tokenizer.vocab_size, key)

    def init() -> TrainState:
        init_key, _ = run_keys(config)
        _, params = build(init_key)
        split = sharding.shard_over_data if config.mesh.shard_optimizer else lambda x: x
        opt_state = jax.jit(lambda params: tx.init(split(params)))(params)
        step, bad_steps, bad_steps_in_row = (jnp.zeros((), jnp.int32) for _ in range(3))
        return TrainState(step, params, opt_state, bad_steps, bad_steps_in_row)

    graphdef, _ = nnx.split(
        nnx.eval_shape(
            lambda: bert_lib.BertForPreTraining(
                config.model, config.tokenizer.vocab_size, nnx.Rngs(params=0)
            )
        )
    )
    return graphdef, init


def run_keys(config: ExperimentConfig) -> tuple[jax.Array, jax.Array]:
    """Returns the keys of the first weights and of dropout."""
    init_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    return init_key, dropout_key


def make_train_step(
    config: ExperimentConfig,
    graphdef: nnx.GraphDef,
    tx: optax.GradientTransformation,
    schedule: optax.Schedule,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Returns train_step(state, batch) -> (state, metrics), to be jitted by the caller.

    The loss is the mean over all masked positions plus the mean over all pairs of the
    global batch, each by its weight, whatever the number of microbatches and devices.

    A step whose loss or gradient is not finite changes no parameter, no moment and not
    the place in the schedule, which is then so many steps behind the phases; it is
    counted, and the next batch follows.
    """
    dtype = compute_dtype(config.compute_dtype)
    kernel_dtype = _kernel_dtype(config)
    next_sentence = config.data.next_sentence

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        _, dropout_key = run_keys(config)
        key = jax.random.fold_in(dropout_key, state.step)
        counts = loss_counts(batch, next_sentence)

        def loss(params: Any, microbatch: Batch, key: jax.Array):
            sums = loss_sums(
                graphdef,
                _with_kernels_as(kernel_dtype, params),
                microbatch,
                next_sentence,
                dropout_key=key,
                dtype=dtype,
                remat=config.remat,
            )
            return total_loss(sums, counts, config.loss_weights), sums

        grad = jax.grad(loss, has_aux=True)
        num = config.accumulation_steps
        if num == 1:
            grads, sums = grad(state.params, batch, key)
        else:
            grads, sums = accumulate(grad, state.params, batch, key, num)
        if config.optimizer.reset_moments_by_phase:
            state = _with_moments_reset(state, config)
        total = total_loss(sums, counts, config.loss_weights)
        new_state, update_metrics = apply_gradients(
            tx, state, grads, total, shard_optimizer=config.mesh.shard_optimizer
        )
        metrics = {
            "loss": total,
            **mean_metrics(sums, counts),
            "learning_rate": schedule(state.step - state.bad_steps),
            **update_metrics,
            "padding_efficiency": jnp.mean(
                (batch["sequence_ids"] > 0).astype(jnp.float32)
            ),
        }
        return new_state, metrics

    return train_step


def _kernel_dtype(config: ExperimentConfig) -> jnp.dtype:
    """Returns the dtype in which devices sum the gradients of kernels."""
    # Microbatches are added up in float32, and XLA sums over devices behind that loop.
    is_accumulated = config.accumulation_steps > 1
    if is_accumulated or compute_dtype(config.compute_dtype) == jnp.float32:
        return jnp.dtype(jnp.float32)
    return jnp.dtype(config.gradient_reduction_dtype)


def _with_kernels_as(dtype: jnp.dtype, params: Any) -> Any:
    """Returns the parameters with kernels cast, whose gradients then have this dtype.

    Devices sum gradients in the dtype that the products give them, see ops.py.
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
) -> tuple[TrainState, Metrics]:
    """Returns the state after a step, and the metrics grad_norm and bad_steps_in_row.

    Args:
      tx: the optimizer.
      state: before the step.
      grads: like its parameters.
      loss: float32[]; where it or a gradient is not finite, the update is left out.
      shard_optimizer: whether moments and update are split over data, too (ZeRO-1).
    """
    with jax.named_scope("optimizer"):
        before = state.params
        if shard_optimizer:
            grads, before = (
                sharding.shard_over_data(grads),
                sharding.shard_over_data(before),
            )
        grad_norm = optax.global_norm(grads)
        is_good = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        updates, opt_state = tx.update(grads, state.opt_state, before)
        params = optax.apply_updates(before, updates)
        params, opt_state = keep_unless(
            is_good, (params, opt_state), (before, state.opt_state)
        )
        params = sharding.reshard_like(params, state.params)
    bad_steps_in_row = jnp.where(is_good, 0, state.bad_steps_in_row + 1)
    new_state = TrainState(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        bad_steps=state.bad_steps + jnp.where(is_good, 0, 1),
        bad_steps_in_row=bad_steps_in_row,
    )
    return new_state, {"grad_norm": grad_norm, "bad_steps_in_row": bad_steps_in_row}


def _with_moments_reset(state: TrainState, config: ExperimentConfig) -> TrainState:
    """Returns the state with new moments where a phase begins."""
    with jax.named_scope("optimizer"):
        starts = jnp.array(phases.phase_starts(config)[1:], jnp.int32)
        begins = jnp.any(state.step == starts)
        opt_state = optimizer.reset_moments(state.opt_state, begins)
    return dataclasses.replace(state, opt_state=opt_state)


def keep_unless(is_good: jax.Array, new: T, old: T) -> T:
    """Returns `new`, or `old` where `is_good` (bool[]) is False: trees of arrays.

    A choice of elements, not of programs: it becomes part of the update, which reads
    the old values anyway, and costs no pass over memory.
    """
    return jax.tree.map(lambda n, o: jnp.where(is_good, n, o), new, old)


def make_eval_step(
    config: ExperimentConfig, graphdef: nnx.GraphDef
) -> Callable[[Any, Batch], tuple[Metrics, Metrics]]:
    """Returns eval_step(params, batch) -> (sums, counts), without dropout."""
    dtype = compute_dtype(config.compute_dtype)
    next_sentence = config.data.next_sentence

    def eval_step(params: Any, batch: Batch) -> tuple[Metrics, Metrics]:
        sums = loss_sums(
            graphdef, params, batch, next_sentence, dropout_key=None, dtype=dtype
        )
        return sums, loss_counts(batch, next_sentence)

    return eval_step


def batch_shapes(phase: PhaseConfig) -> dict[str, tuple[tuple[int, int], jnp.dtype]]:
    """Returns the shape and dtype of every array of a phase's global batches."""
    B, T = phase.global_batch_size, phase.sequence_length
    P, K = phase.max_predictions, phase.max_sequences_per_row
    tokens = ("input_ids", "segment_ids", "position_ids", "sequence_ids")
    widths = {name: T for name in tokens}
    widths |= {f"masked_lm_{name}": P for name in ("positions", "ids", "weights")}
    pairs = ("positions", "labels", "weights")
    widths |= {f"next_sentence_{name}": K for name in pairs}
    return {
        name: ((B, width), jnp.dtype("float32" if "weights" in name else "int32"))
        for name, width in widths.items()
    }


def loss_sums(
    graphdef: nnx.GraphDef,
    params: Any,
    batch: Batch,
    next_sentence: bool,
    *,
    dropout_key: jax.Array | None,
    dtype: jnp.dtype,
    remat: str = "none",
) -> Metrics:
    """Returns summed losses and right guesses, float32[] each.

    Of both objectives, or without `next_sentence` of the masked LM alone.
    """
    bert = nnx.merge(graphdef, params)
    masked_lm_BPV, next_sentence_BK2 = bert(
        batch, dropout_key=dropout_key, dtype=dtype, remat=remat
    )
    masked_lm_loss, masked_lm_correct = losses.masked_lm(
        masked_lm_BPV, batch["masked_lm_ids"], batch["masked_lm_weights"]
    )
    sums = {"masked_lm_loss": masked_lm_loss, "masked_lm_accuracy": masked_lm_correct}
    if not next_sentence:
        return sums
    next_sentence_loss, next_sentence_correct = losses.next_sentence(
        next_sentence_BK2,
        batch["next_sentence_labels"],
        batch["next_sentence_weights"],
    )
    return sums | {
        "next_sentence_loss": next_sentence_loss,
        "next_sentence_accuracy": next_sentence_correct,
    }


def loss_counts(batch: Batch, next_sentence: bool) -> Metrics:
    """Returns what each of `loss_sums` is a sum over, float32[] each."""
    masked_lm = jnp.sum(batch["masked_lm_weights"])
    counts = {"masked_lm_loss": masked_lm, "masked_lm_accuracy": masked_lm}
    if not next_sentence:
        return counts
    pairs = jnp.sum(batch["next_sentence_weights"])
    return counts | {"next_sentence_loss": pairs, "next_sentence_accuracy": pairs}


def mean_metrics(sums: Metrics, counts: Metrics) -> Metrics:
    # Counts are whole; the maximum stands for the released code's + 1e-5, which keeps
    # a batch without masks finite but bends every accuracy.
    return {name: sums[name] / jnp.maximum(counts[name], 1.0) for name in sums}


def total_loss(sums: Metrics, counts: Metrics, weights: LossWeightsConfig) -> jax.Array:
    """Returns the weighted sum of the objectives' losses, each a mean."""
    means = mean_metrics(sums, counts)
    total = weights.masked_lm * means["masked_lm_loss"]
    if "next_sentence_loss" in means:
        total += weights.next_sentence * means["next_sentence_loss"]
    return total


def accumulate(
    grad: Callable[..., tuple[Any, Metrics]],
    params: Any,
    batch: Batch,
    key: jax.Array,
    num: int,
) -> tuple[Any, Metrics]:
    """Returns gradients and sums added up over `num` microbatches, one at a time."""

    def split(rows: jax.Array) -> jax.Array:
        # [B, ...] -> [B / num, num, ...]: the microbatch index comes last of the two,
        # so that every device keeps the rows it has.
        shape = (rows.shape[0] // num, num, *rows.shape[1:])
        dims = ("batch", *["replicated"] * (len(shape) - 1))
        return jnp.reshape(rows, shape, out_sharding=sharding.spec(*dims))

    microbatches = {name: split(rows) for name, rows in batch.items()}

    def grad_of(i: jax.Array) -> tuple[Any, Metrics]:
        microbatch = {name: rows[:, i] for name, rows in microbatches.items()}
        return grad(params, microbatch, jax.random.fold_in(key, i))

    # From zeros: the first one ahead of the loop would be a second copy of the program,
    # with a sum over devices of its own, where XLA moves the loop's to behind the loop.
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype, out_sharding=x.sharding),
        jax.eval_shape(grad_of, 0),
    )
    return jax.lax.fori_loop(
        0, num, lambda i, total: jax.tree.map(jnp.add, total, grad_of(i)), zeros
    )
