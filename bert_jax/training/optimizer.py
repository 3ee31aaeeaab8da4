"""Optimizers and learning-rate schedules, selected by name.

`adamw_bert` is the released optimizer, AdamW without bias correction.
`adamw` and `lamb` are optax's. In all of them, epsilon is added outside the square
root, and weight decay is decoupled and does not apply to biases and LayerNorm. `muon`
orthogonalizes the updates of the layers' kernels, and is `adamw` for the others.

Shapes: M row, N column of a kernel.
Source: google-research/bert optimization.py; Loshchilov and Hutter 2019 (AdamW); You et
al. 2020 (LAMB); Jordan 2024 (Muon), with the scale of Liu et al. 2025.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.config.schema import AdamConfig, ExperimentConfig, OptimizerConfig
from bert_jax.model.parameters import path_name
from bert_jax.phases import phase_starts

# The last component of a parameter's name determines whether it decays: kernels and
# embedding tables do, biases and LayerNorm scales do not.
UNDECAYED = ("bias", "scale", "decoder_bias")

# Muon: coefficients of x, x x^T x and (x x^T)^2 x in a step of its iteration, the
# number of steps, and the root mean square of an update, which is near that of Adam's.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
MUON_RMS = 0.2


class BertAdamState(NamedTuple):
    mu: Any  # a tree like the parameters, of OptimizerConfig.mu_dtype
    nu: Any  # a tree like the parameters, float32


def make_optimizer(
    config: ExperimentConfig,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    schedule = make_schedule(config)
    given = config.optimizer
    return transformation(given.name, given, schedule, given.mu_dtype), schedule


def transformation(
    name: str, config: AdamConfig, schedule: optax.Schedule, mu_dtype: str = "float32"
) -> optax.GradientTransformation:
    """Returns an optimizer by its name, with a given schedule.

    The gradient is clipped by its global norm after it is averaged over the whole
    batch; the released code clips each replica's gradient before the sum.
    """
    betas, dtype = (config.beta1, config.beta2), jnp.dtype(mu_dtype)
    if name == "adamw_bert":
        adam = scale_by_bert_adam(*betas, config.epsilon, dtype)
    else:
        adam = optax.scale_by_adam(*betas, config.epsilon, mu_dtype=dtype)
    if name == "muon":
        muon = optax.chain(
            optax.trace(config.beta1, nesterov=True, accumulator_dtype=dtype),
            optax.stateless_with_tree_map(lambda g, _: orthogonalize(jnp.asarray(g))),
        )
        adam = optax.partition({True: muon, False: adam}, is_layer_kernel)
    parts = [adam, optax.add_decayed_weights(config.weight_decay, mask=decay_mask)]
    if name == "lamb":
        # LAMB with bias correction, as in the paper. The trust ratio applies to the
        # tensors that decay, as in the authors' code.
        parts.append(optax.masked(optax.scale_by_trust_ratio(), decay_mask))
    return optax.chain(
        clip_by_global_norm(config.clip_norm),
        *parts,
        optax.scale_by_learning_rate(schedule),
    )


def make_schedule(config: ExperimentConfig) -> optax.Schedule:
    """Returns the learning rate as a function of the step, counted from 0.

    The schedule covers the whole run. With config.optimizer.schedule_by_phase, it
    restarts in each phase, including the warmup.
    """
    if not config.optimizer.schedule_by_phase:
        return _schedule(config.optimizer, config.num_steps)
    return optax.join_schedules(
        [_schedule(config.optimizer, phase.num_steps) for phase in config.phases],
        phase_starts(config)[1:],
    )


def schedule_notes(config: ExperimentConfig) -> list[str]:
    """Returns a warning if a schedule is all warmup, which is rarely intended."""
    warmup_steps, num_steps = config.optimizer.warmup_steps, config.schedule_steps
    if warmup_steps < num_steps:
        return []
    return [
        f"config.optimizer.warmup_steps={warmup_steps} takes all {num_steps} steps of"
        " the shortest schedule: its learning rate never decays"
    ]


def _schedule(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
    peak, warmup_steps = config.learning_rate, config.warmup_steps
    if config.schedule == "linear":
        return warmup_linear_decay(peak, warmup_steps, num_steps)
    if config.schedule == "constant":
        # optax.warmup_constant_schedule stays at 0 if there is no warmup.
        return optax.join_schedules(
            [optax.linear_schedule(0.0, peak, warmup_steps), lambda _: peak],
            [warmup_steps],
        )
    if config.schedule == "wsd":
        return warmup_stable_decay(peak, warmup_steps, num_steps, config.decay_steps)
    return optax.warmup_cosine_decay_schedule(0.0, peak, warmup_steps, num_steps)


def warmup_linear_decay(
    peak: float, warmup_steps: int, num_steps: int
) -> optax.Schedule:
    """Returns the released schedule: linear warmup, then linear decay to 0.

    The decay is counted from step 0, so the warmup ends a little below the peak: at
    peak * (1 - warmup_steps / num_steps).
    """

    def schedule(step: Any) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        decay = peak * jnp.maximum(1.0 - step / num_steps, 0.0)
        warmup = peak * step / max(warmup_steps, 1)
        return jnp.where(step < warmup_steps, warmup, decay)

    return schedule


def warmup_stable_decay(
    peak: float, warmup_steps: int, num_steps: int, decay_steps: int
) -> optax.Schedule:
    """Returns a linear warmup, a constant rate, and a decay at the end.

    Up to the decay, the rate has the same bits for all `num_steps` and `decay_steps`,
    so that a run can branch off an earlier checkpoint of another one and decay.
    """

    def schedule(step: Any) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        warmup = peak * step / max(warmup_steps, 1)
        done = (step - (num_steps - decay_steps)) / max(decay_steps, 1)
        factor = decay_factor(jnp.clip(done, 0.0, 1.0))
        return jnp.where(step < warmup_steps, warmup, peak) * factor

    return schedule


def decay_factor(progress: Any) -> Any:
    """Returns 1 - sqrt(progress), the factor of the peak rate during a decay.

    It is 1 at the start and 0 after the last step, and reaches lower losses than a
    linear decay. Source: Haegele et al. 2024, "Scaling Laws and Compute-Optimal
    Training Beyond Fixed Training Durations" (arXiv:2405.18392), section 3.
    """
    return 1.0 - progress**0.5


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Scales the gradient down to `max_norm` when its global norm is larger.

    This multiplies by one factor, where optax's function of the same name takes two
    elementwise operations. The factor fuses into the updates of the moments, which
    saves a pass over the gradient.
    """

    def clip(updates: Any, _: Any) -> Any:
        factor = jnp.minimum(1.0, max_norm / optax.tree.norm(updates))
        return jax.tree.map(lambda g: g * factor, updates)

    return optax.stateless(clip)


def scale_by_bert_adam(
    beta1: float, beta2: float, epsilon: float, mu_dtype: jnp.dtype
) -> optax.GradientTransformation:
    """Returns m / (sqrt(v) + epsilon): Adam without bias correction."""

    def init(params: Any) -> BertAdamState:
        return BertAdamState(
            mu=jax.tree.map(lambda p: jnp.zeros_like(p, mu_dtype), params),
            nu=jax.tree.map(jnp.zeros_like, params),
        )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        mu = jax.tree.map(
            lambda m, g: beta1 * m.astype(g.dtype) + (1 - beta1) * g, state.mu, updates
        )
        nu = jax.tree.map(
            lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.nu, updates
        )
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
        mu = jax.tree.map(lambda m: m.astype(mu_dtype), mu)
        return updates, BertAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def orthogonalize(update_MN: jax.Array) -> jax.Array:
    """Moves the singular values of a matrix towards 1, and scales it like Adam's step.

    Every device computes it from the whole matrix.
    """
    whole_MN = jax.reshard(update_MN, jax.P()).astype(jnp.float32)
    is_tall = whole_MN.shape[0] > whole_MN.shape[1]
    x = whole_MN.T if is_tall else whole_MN
    x /= jnp.linalg.norm(x) + 1e-8
    for _ in range(NEWTON_SCHULZ_STEPS):
        a, b, c = NEWTON_SCHULZ
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = MUON_RMS * max(update_MN.shape) ** 0.5 * (x.T if is_tall else x)
    return jax.reshard(x, jax.typeof(update_MN).sharding.spec)


def is_layer_kernel(params: Any) -> Any:
    """Returns a tree of bools: True for the kernels of the encoder layers."""

    def check(path: tuple[Any, ...], _: Any) -> bool:
        name = path_name(path)
        return ".layers." in name and name.endswith(".kernel")

    return jax.tree_util.tree_map_with_path(check, params)


def decay_mask(params: Any) -> Any:
    """Returns a tree of bools: True where weight decay applies."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path_name(path).rpartition(".")[2] not in UNDECAYED, params
    )
