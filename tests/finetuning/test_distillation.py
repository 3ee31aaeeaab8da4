"""Distillation losses: zero for identical models, otherwise towards the teacher."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx

from bert_jax.distributed import sharding
from bert_jax.finetuning import distillation
from bert_jax.finetuning.config import DistillConfig
from bert_jax.model import heads
from bert_jax.model.heads import Outputs
from tests.conftest import slow, use_mesh
from tests.finetuning import tuned

CONFIG = DistillConfig(
    teacher="x", label_weight=0.0, logits_weight=0.5, temperature=2.0, states_weight=1.0
)
every_kind = pytest.mark.parametrize("kind", heads.KINDS)


def outputs(kind, batch, seed, num_layers=2):
    config = dataclasses.replace(
        tuned.make_config().model, num_hidden_layers=num_layers
    )
    graphdef, params = tuned.draw(config, tuned.HEADS[kind], seed)
    forward = jax.jit(
        lambda params, batch: nnx.merge(graphdef, params)(
            batch, dropout_key=None, dtype=jnp.dtype("float32")
        )
    )
    return forward(params, batch)


def loss(kind, student, teacher, batch, **changes) -> float:
    config = dataclasses.replace(CONFIG, **changes)
    found = jax.jit(distillation.loss, static_argnums=(0, 4))(
        kind, student, teacher, batch, config
    )
    return float(found)


@pytest.mark.parametrize(
    "kind",
    [
        "tagging",
        *(slow(k) for k in heads.KINDS if k != "tagging"),
    ],
)
def test_loss_and_gradient_are_zero_for_a_copy_of_the_teacher(kind):
    batch = tuned.make_batch(kind)
    one, other = outputs(kind, batch, 0), outputs(kind, batch, 1)
    assert loss(kind, one, one, batch) == pytest.approx(0, abs=1e-5)
    assert loss(kind, other, one, batch, states_weight=0.0) > 1e-3
    assert loss(kind, other, one, batch, logits_weight=0.0) > 1e-3


@every_kind
@pytest.mark.slow
def test_padding_rows_and_tokens_do_not_contribute(kind):
    batch = tuned.make_batch(kind)
    one, other = outputs(kind, batch, 0), outputs(kind, batch, 1)
    batch["weights"][2:] = 0
    expected = loss(kind, other, one, batch)
    rows = len(one.states[0]) // 4  # rows per example
    is_real = (batch["sequence_ids"] > 0).reshape(-1, 16)
    is_real[2 * rows :] = False

    def change(x):
        return jnp.where(is_real[:, : x.shape[1], None], x, 7.0)

    states = [change(x) for x in other.states]
    first_B = np.arange(4).reshape(4, *[1] * (other.logits.ndim - 1)) < 2
    logits = jnp.where(first_B, other.logits, 3.0)
    assert loss(kind, Outputs(logits, states), one, batch) == pytest.approx(expected)


def test_logits_are_compared_as_distributions():
    """The reference is SciPy's Kullback-Leibler divergence at a temperature."""
    random = np.random.default_rng(0)
    student, teacher = random.normal(size=(2, 4, 3)).astype(np.float32)
    found = distillation.logits_distance("classification", student, teacher, 2.0)
    p, q = (scipy.special.softmax(x / 2, axis=1) for x in (teacher, student))
    expected = 4 * scipy.special.rel_entr(p, q).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    found = distillation.logits_distance("multi_label", student, teacher, 2.0)
    p, q = (scipy.special.expit(x / 2) for x in (teacher, student))
    expected = scipy.special.rel_entr(p, q) + scipy.special.rel_entr(1 - p, 1 - q)
    np.testing.assert_allclose(found, 4 * expected, rtol=1e-4, atol=1e-6)


def test_layers_are_matched_by_relative_depth():
    """Two layers match layers 2 and 4 of four; the last has the state of [CLS] only."""
    batch = tuned.make_batch("classification")
    real = batch["sequence_ids"] > 0
    teacher = [jnp.full((4, 16, 8), float(i)) for i in range(4)]
    teacher.append(jnp.full((4, 1, 8), 4.0))
    student = [jnp.zeros((4, 16, 8)), jnp.zeros((4, 16, 8)), jnp.zeros((4, 1, 8))]
    student[1] = student[1].at[0, 3].set(2.0)  # equals the teacher's at one token
    found = distillation.states_distance(student, teacher, batch)
    share = 1 - 1 / real[0].sum()
    np.testing.assert_allclose(found, [(4 * share + 16) / 2, 10, 10, 10], rtol=1e-6)


@pytest.mark.slow
@every_kind
def test_the_loss_does_not_depend_on_the_mesh(kind):
    batch = tuned.make_batch(kind)
    expected = loss(kind, outputs(kind, batch, 1), outputs(kind, batch, 0, 4), batch)
    mesh = use_mesh(2, 2, 2)
    placed = sharding.place_batch(batch, mesh)
    student, teacher = outputs(kind, placed, 1), outputs(kind, placed, 0, 4)
    assert loss(kind, student, teacher, placed) == pytest.approx(expected, rel=1e-5)
