"""Tests of bert_jax.training.losses, against the formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training import losses


def reference(logits, labels, weights):
    logits = logits.astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    correct = logits.argmax(-1) == labels
    return -(picked * weights).sum(), (correct * weights).sum()


def random_case(shape, num_classes):
    random = np.random.default_rng(0)
    return (
        random.normal(0, 3, (*shape, num_classes)).astype(np.float32),
        random.integers(0, num_classes, shape).astype(np.int32),
        random.integers(0, 2, shape).astype(np.float32),
    )


@pytest.mark.parametrize(("shape", "num_classes"), [((4, 6), 50), ((8, 2), 2)])
def test_cross_entropy_is_a_weighted_sum(shape, num_classes):
    case = random_case(shape, num_classes)
    found = losses.weighted_cross_entropy(*map(jnp.asarray, case))
    np.testing.assert_allclose(found, reference(*case), rtol=1e-5)


def test_gradient_reaches_weighted_positions_only():
    logits, labels, weights = map(jnp.asarray, random_case((4, 6), 50))
    gradient = jax.grad(lambda x: losses.weighted_cross_entropy(x, labels, weights)[0])(
        logits
    )
    assert not np.any(gradient[weights == 0])
    assert np.all(np.abs(gradient[weights == 1]).sum(-1) > 0)


def test_large_logits_stay_finite():
    logits = jnp.array([[[1e4, 0.0, -1e4]]])
    total, correct = losses.weighted_cross_entropy(
        logits, jnp.array([[0]], jnp.int32), jnp.ones((1, 1))
    )
    assert float(total) == 0.0 and float(correct) == 1.0
