"""Tests of bert_jax.training.optimizer, against NumPy versions in float64."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax import config as config_lib
from bert_jax.model import bert, parameters
from bert_jax.training import optimizer
from tests.conftest import make_config

NUM_STEPS, WARMUP, DECAY_STEPS = 100, 5, 10
KERNEL = "bert.layers.0.output.kernel"
SHAPES = {KERNEL: (3, 4), "bias": (4,), "scale": (4,), "word": (7, 4)}
BETA1, BETA2, EPSILON, DECAY, CLIP, PEAK = 0.9, 0.999, 1e-6, 0.1, 1.0, 1e-2


@pytest.fixture(autouse=True)
def standard_promotion():
    """optax multiplies its int32 counts by floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def run_config(num_steps=(NUM_STEPS,), **changes) -> config_lib.ExperimentConfig:
    values = {
        "learning_rate": PEAK,
        "warmup_steps": WARMUP,
        "weight_decay": DECAY,
        "beta1": BETA1,
        "beta2": BETA2,
        "epsilon": EPSILON,
        "clip_norm": CLIP,
    } | changes
    if values.get("schedule") == "wsd":
        values |= {"decay_steps": DECAY_STEPS}
    config = make_config(**{f"optimizer__{k}": v for k, v in values.items()})
    phases = tuple(
        dataclasses.replace(config.phases[0], num_steps=n) for n in num_steps
    )
    return dataclasses.replace(config, phases=phases)


def linear(step, num_steps=NUM_STEPS):
    """Linear decay from step 0 that the warmup replaces, as in optimization.py."""
    if step < WARMUP:
        return PEAK * step / WARMUP
    return PEAK * (1 - step / num_steps)


def cosine(step, num_steps=NUM_STEPS):
    if step < WARMUP:
        return PEAK * step / WARMUP
    return PEAK * (1 + math.cos(math.pi * (step - WARMUP) / (num_steps - WARMUP))) / 2


def constant(step, num_steps=NUM_STEPS):
    return PEAK * min(1.0, step / WARMUP)


def wsd(step, num_steps=NUM_STEPS):
    done = max(0, (step - (num_steps - DECAY_STEPS)) / DECAY_STEPS)
    return constant(step) * (1 - math.sqrt(done))


def numpy_step(name, params, m, v, grads, step):
    """Takes step `step`, counted from 0, and updates params, m and v in place."""
    norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
    for key, g in grads.items():
        g = g * min(1.0, CLIP / norm)
        if name == "muon" and key == KERNEL:
            m[key] = BETA1 * m[key] + g
            update = orthogonalized(g + BETA1 * m[key])
            params[key] = params[key] - linear(step) * (update + DECAY * params[key])
            continue
        m[key] = BETA1 * m[key] + (1 - BETA1) * g
        v[key] = BETA2 * v[key] + (1 - BETA2) * g**2
        if name == "adamw_bert":
            update = m[key] / (np.sqrt(v[key]) + EPSILON)
        else:
            m_hat = m[key] / (1 - BETA1 ** (step + 1))
            v_hat = v[key] / (1 - BETA2 ** (step + 1))
            update = m_hat / (np.sqrt(v_hat) + EPSILON)
        if key in (KERNEL, "word"):
            update = update + DECAY * params[key]
            if name == "lamb":
                norms = np.linalg.norm(params[key]), np.linalg.norm(update)
                update = update * norms[0] / norms[1]
        params[key] = params[key] - linear(step) * update


def orthogonalized(x):
    """Applies Muon's polynomial to the singular values, which are scaled to norm 1."""
    u, s, v = np.linalg.svd(x, full_matrices=False)
    s /= np.linalg.norm(s)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return 0.2 * math.sqrt(max(x.shape)) * (u * s) @ v


def gradients(size):
    """Yields the gradients of every step."""
    random = np.random.default_rng(1)
    for _ in range(NUM_STEPS):
        yield {name: random.normal(0, size, shape) for name, shape in SHAPES.items()}


def start():
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape) for name, shape in SHAPES.items()}


@functools.cache
def train(config, size):
    """Returns the parameters after all steps, and the optimizer's state."""
    tx, _ = optimizer.make_optimizer(config)

    @jax.jit
    def update(grads, opt_state, params):
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), start())
    opt_state = tx.init(params)
    for grads in gradients(size):
        grads = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), grads)
        params, opt_state = update(grads, opt_state, params)
    return params, opt_state


def assert_near(found, expected, tolerance):
    for name in SHAPES:
        error = np.linalg.norm(np.asarray(found[name], np.float64) - expected[name])
        assert error < tolerance * np.linalg.norm(expected[name]), name


@pytest.mark.parametrize(
    ("name", "gradient_size"),
    [("adamw_bert", 0.05), *((name, 5.0) for name in config_lib.OPTIMIZERS)],
)
def test_a_hundred_steps_equal_numpy(name, gradient_size):
    """The gradients are below the clipping norm, or far above it."""
    expected = start()
    m = {key: np.zeros(shape) for key, shape in SHAPES.items()}
    v = {key: np.zeros(shape) for key, shape in SHAPES.items()}
    for step, grads in enumerate(gradients(gradient_size)):
        numpy_step(name, expected, m, v, grads, step)
    params, _ = train(run_config(name=name), gradient_size)
    assert_near(params, expected, 1e-6)


@pytest.mark.parametrize("name", ["adamw", "adamw_bert"])
def test_a_hundred_steps_against_torch(name):
    """AdamW of PyTorch equals `adamw`, and differs from `adamw_bert`."""
    torch = pytest.importorskip("torch")
    params = {
        key: torch.nn.Parameter(torch.tensor(value, dtype=torch.float64))
        for key, value in start().items()
    }
    groups = [
        {"params": [params[KERNEL], params["word"]], "weight_decay": DECAY},
        {"params": [params["bias"], params["scale"]], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.0, betas=(BETA1, BETA2), eps=EPSILON)
    for step, grads in enumerate(gradients(1.0)):
        for key, value in grads.items():
            params[key].grad = torch.tensor(value, dtype=torch.float64)
        torch.nn.utils.clip_grad_norm_(params.values(), CLIP)
        for group in adamw.param_groups:
            group["lr"] = linear(step)
        adamw.step()
    found, _ = train(run_config(name=name), 1.0)
    expected = {key: value.detach().numpy() for key, value in params.items()}
    if name == "adamw":
        # PyTorch adds 1e-6 to the norm that it clips by.
        assert_near(found, expected, 1e-5)
    else:
        with pytest.raises(AssertionError):
            assert_near(found, expected, 1e-3)


@pytest.mark.parametrize("name", config_lib.OPTIMIZERS)
def test_a_bfloat16_first_moment_gives_nearly_the_same_updates(name):
    params, opt_state = train(run_config(name=name, mu_dtype="bfloat16"), 5.0)
    states = jax.tree.leaves(opt_state, is_leaf=lambda x: hasattr(x, "mu"))
    (adam,) = (state for state in states if hasattr(state, "mu"))
    assert {leaf.dtype for leaf in jax.tree.leaves(adam.mu)} == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(adam.nu)} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    wide, _ = train(run_config(name=name), 5.0)
    moved = {key: np.asarray(wide[key]) - start()[key] for key in SHAPES}
    found = {key: np.asarray(params[key]) - start()[key] for key in SHAPES}
    assert_near(found, moved, 2e-2)


@pytest.mark.parametrize("shape", [(32, 32), (64, 16), (16, 64)])
def test_orthogonalized_updates_are_those_of_optax(shape):
    gradient = jax.random.normal(jax.random.key(0), shape)
    scaled = optax.contrib.muon(-1.0, nesterov=False, consistent_rms=0.2)
    expected, _ = scaled.update(gradient, scaled.init(gradient), gradient)
    found = optimizer.orthogonalize(gradient)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    root_mean_square = float(jnp.sqrt(jnp.mean(found**2)))
    assert 0.15 < root_mean_square < 0.25  # that of Adam's updates


@pytest.mark.parametrize("schedule", [linear, cosine, constant, wsd])
def test_schedule_at_every_step(schedule):
    _, found = optimizer.make_optimizer(run_config(schedule=schedule.__name__))
    steps = range(NUM_STEPS + 1)
    np.testing.assert_allclose(
        [float(found(jnp.int32(step))) for step in steps],
        [schedule(step) for step in steps],
        rtol=1e-5,
        atol=1e-8,
    )
    assert float(found(jnp.int32(0))) == 0.0


@pytest.mark.parametrize("schedule", [linear, cosine, constant, wsd])
def test_schedule_by_phase_restarts_in_each_phase(schedule):
    config = run_config((30, 20), schedule=schedule.__name__, schedule_by_phase=True)
    found = optimizer.make_schedule(config)
    np.testing.assert_allclose(
        [float(found(jnp.int32(step))) for step in range(50)],
        [schedule(i, 30) for i in range(30)] + [schedule(i, 20) for i in range(20)],
        rtol=1e-5,
        atol=1e-8,
    )


def test_rates_before_the_decay_do_not_depend_on_the_number_of_steps():
    """A branch of another run has the bits of its rates up to the decay."""
    steps = jnp.arange(NUM_STEPS - DECAY_STEPS + 1)
    short, long = (
        jax.jit(optimizer.make_schedule(run_config((n,), schedule="wsd")))(steps)
        for n in (NUM_STEPS, 2 * NUM_STEPS)
    )
    np.testing.assert_array_equal(short, long)


def test_kernels_and_embeddings_decay_and_muon_is_for_kernels_of_layers():
    config, key = make_config(model__num_hidden_layers=1), jax.random.key(0)
    params = jax.eval_shape(lambda: bert.build(config.model, 97, key)[1])

    def names(mask):
        return {
            name for name, is_in in parameters.leaves(mask(params)).items() if is_in
        }

    attention = {f"attention.{name}" for name in ("query", "key", "value", "output")}
    kernels = {*attention, "intermediate", "output"}
    in_layers = {f"bert.layers.0.{name}.kernel" for name in kernels}
    assert names(optimizer.is_layer_kernel) == in_layers
    assert names(optimizer.decay_mask) == in_layers | {
        "bert.embeddings.word",
        "bert.embeddings.position",
        "bert.embeddings.segment",
        "bert.pooler.kernel",
        "transform.kernel",
        "next_sentence.kernel",
    }
