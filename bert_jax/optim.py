"""The released optimizer: clipping, AdamW without bias correction, a line up and down.

Source: google-research/bert optimization.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import OptimizerConfig
from bert_jax.model import path_name

# Every parameter is named for what it is, so its last name says whether it decays:
# kernels and embedding tables do, biases and LayerNorm scales do not.
UNDECAYED = ("bias", "scale", "decoder_bias")


class BertAdamState(NamedTuple):
    mu: Any  # like the parameters, float32
    nu: Any


def make_optimizer(
    config: OptimizerConfig, num_steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns AdamW as in the released code, and its learning rate as a function.

    The gradient is clipped by its global norm after the mean over the whole batch;
    the released code clips each replica's gradient before they are summed.
    """
    schedule = warmup_linear_decay(config.learning_rate, config.warmup_steps, num_steps)
    tx = optax.chain(
        clip_by_global_norm(config.clip_norm),
        scale_by_bert_adam(config.beta1, config.beta2, config.epsilon),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
        optax.scale_by_learning_rate(schedule),
    )
    return tx, schedule


def warmup_linear_decay(
    peak: float, warmup_steps: int, num_steps: int
) -> optax.Schedule:
    """Returns the released schedule: peak * step / warmup, then a line to 0.

    The decay is counted from step 0, so the warmup ends a little below the peak: at
    peak * (1 - warmup_steps / num_steps).
    """

    def schedule(step: Any) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        decay = peak * jnp.maximum(1.0 - step / num_steps, 0.0)
        warmup = peak * step / max(warmup_steps, 1)
        return jnp.where(step < warmup_steps, warmup, decay)

    return schedule


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Scales the gradient down to `max_norm` when its global norm is larger.

    One factor, not the two elementwise operations of optax's function of that name:
    the factor fuses into the moments' updates, which saves a pass over the gradient.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        factor = jnp.minimum(1.0, max_norm / optax.global_norm(updates))
        return jax.tree.map(lambda g: g * factor, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_by_bert_adam(
    beta1: float, beta2: float, epsilon: float
) -> optax.GradientTransformation:
    """Returns m / (sqrt(v) + epsilon): Adam without bias correction."""

    def init(params: Any) -> BertAdamState:
        return BertAdamState(
            mu=jax.tree.map(jnp.zeros_like, params),
            nu=jax.tree.map(jnp.zeros_like, params),
        )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, updates)
        nu = jax.tree.map(
            lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.nu, updates
        )
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
        return updates, BertAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def decay_mask(params: Any) -> Any:
    """Returns a tree of bools: True where weight decay applies."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path_name(path).rpartition(".")[2] not in UNDECAYED, params
    )
