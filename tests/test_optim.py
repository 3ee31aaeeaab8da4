"""The optimizer against an independent NumPy version of the released code."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax import model, optim
from bert_jax.config import OptimizerConfig
from tests.conftest import make_config

CONFIG = OptimizerConfig(
    learning_rate=1e-2,
    warmup_steps=5,
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-6,
    clip_norm=1.0,
)
NUM_STEPS = 30


def released_learning_rate(step):
    """optimization.py: linear decay from step 0, replaced by the warmup line."""
    if step < CONFIG.warmup_steps:
        return CONFIG.learning_rate * step / CONFIG.warmup_steps
    return CONFIG.learning_rate * (1 - step / NUM_STEPS)


def released_update(params, m, v, grads, step):
    """One step of AdamWeightDecayOptimizer after clip_by_global_norm, in float64."""
    norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
    for name, g in grads.items():
        g = g * min(1.0, CONFIG.clip_norm / norm)
        m[name] = CONFIG.beta1 * m[name] + (1 - CONFIG.beta1) * g
        v[name] = CONFIG.beta2 * v[name] + (1 - CONFIG.beta2) * g**2
        update = m[name] / (np.sqrt(v[name]) + CONFIG.epsilon)
        if name == "kernel":
            update = update + CONFIG.weight_decay * params[name]
        params[name] = params[name] - released_learning_rate(step) * update


@pytest.mark.parametrize("gradient_size", [0.05, 5.0])
def test_steps_equal_the_released_optimizer(gradient_size):
    """With gradients below the clipping norm, and with gradients far above it."""
    random = np.random.default_rng(0)
    shapes = {"kernel": (3, 4), "bias": (4,), "scale": (4,)}
    start = {name: random.normal(size=shape) for name, shape in shapes.items()}
    expected = dict(start)
    m = {name: np.zeros(shape) for name, shape in shapes.items()}
    v = {name: np.zeros(shape) for name, shape in shapes.items()}
    tx, _ = optim.make_optimizer(CONFIG, NUM_STEPS)
    params = {name: jnp.asarray(x, jnp.float32) for name, x in start.items()}
    opt_state = tx.init(params)
    for step in range(NUM_STEPS):
        grads = {
            name: random.normal(0, gradient_size, shape)
            for name, shape in shapes.items()
        }
        updates, opt_state = tx.update(
            {name: jnp.asarray(g, jnp.float32) for name, g in grads.items()},
            opt_state,
            params,
        )
        params = optax.apply_updates(params, updates)
        released_update(expected, m, v, grads, step)
    for name in shapes:
        np.testing.assert_allclose(params[name], expected[name], rtol=1e-5, atol=1e-6)


def test_schedule_is_the_released_one_at_every_step():
    _, schedule = optim.make_optimizer(CONFIG, NUM_STEPS)
    found = [float(schedule(jnp.int32(step))) for step in range(NUM_STEPS + 1)]
    expected = [released_learning_rate(step) for step in range(NUM_STEPS + 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert found[0] == 0.0 and found[-1] == 0.0


def test_schedule_without_warmup_starts_at_the_peak():
    schedule = optim.warmup_linear_decay(1.0, 0, 10)
    assert float(schedule(jnp.int32(0))) == 1.0


def test_kernels_and_embeddings_decay_and_nothing_else():
    config = make_config(model__num_hidden_layers=1)
    _, params = model.build(config.model, 97, jax.random.key(0))
    leaves, _ = jax.tree_util.tree_flatten_with_path(optim.decay_mask(params))
    decayed = {model.path_name(path) for path, decays in leaves if decays}
    layer = "bert.layers.0"
    assert decayed == {
        "bert.embeddings.word",
        "bert.embeddings.position",
        "bert.embeddings.segment",
        f"{layer}.attention.query.kernel",
        f"{layer}.attention.key.kernel",
        f"{layer}.attention.value.kernel",
        f"{layer}.attention.output.kernel",
        f"{layer}.intermediate.kernel",
        f"{layer}.output.kernel",
        "bert.pooler.kernel",
        "transform.kernel",
        "next_sentence.kernel",
    }
