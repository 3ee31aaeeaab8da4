"""The step uses the gradient of the mean loss over the whole batch.

Distillation losses are zero for identical models, otherwise towards the teacher.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx

from bert_jax.distributed import sharding
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning import step as tuning_step
from bert_jax.finetuning.config import DistillConfig
from bert_jax.finetuning.tasks import TASKS
from bert_jax.model import parameters
from bert_jax.model.heads import Outputs
from bert_jax.training.step import TrainState
from tests.conftest import slow, use_mesh
from tests.finetuning import tuned
from tests.finetuning.test_config import change

TAUGHT = {
    "distill__teacher": "another model",
    "distill__label_weight": 0.5,
    "distill__logits_weight": 0.5,
    "distill__temperature": 2.0,
    "distill__states_weight": 1.0,
}
CONFIGS = {"classification": "sst2", "tagging": "wnut17", "multiple_choice": "swag"}


def take_step(kind, batch, mesh=(1, 1, 1), dropout=0.0, **changes):
    """Returns the parameters by name and the metrics after one step."""
    devices = use_mesh(*mesh)
    name = CONFIGS[kind]
    config = change(name, task__kind=kind, **changes)
    config = tasks_config.from_config_dict(config)
    model, _, _ = tuned.build(kind)
    model = dataclasses.replace(
        model, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    head = dataclasses.replace(tuned.HEADS[kind], dropout_prob=dropout)
    graphdef, params = tuned.draw(model, head, 0)
    tx, _ = tuning_step.make_optimizer(config.recipe, 1e-3, 10)
    teacher = taught_by = None
    if config.distill.teacher:
        deeper = dataclasses.replace(tuned.make_config().model, num_hidden_layers=4)
        teacher, taught_by = tuned.draw(deeper, tuned.HEADS[kind], 1)
    step = tuning_step.make_train_step(config, graphdef, 10, teacher)
    none = jnp.zeros((), jnp.int32)
    shard = config.mesh.shard_optimizer
    moments = jax.jit(lambda p: tx.init(sharding.shard_over_data(p) if shard else p))(
        params
    )
    state = TrainState(none + 1, params, moments, none, none)
    placed = sharding.place_batch(batch, devices)
    key = jax.random.fold_in(jax.random.key(0), 1)
    state, metrics = jax.jit(step)(state, placed, jnp.float32(1e-3), key, taught_by)
    return parameters.by_name(state.params), jax.device_get(metrics)


def assert_near(found, expected):
    assert found[1]["loss"] == pytest.approx(expected[1]["loss"], rel=1e-5)
    assert found[1]["grad_norm"] == pytest.approx(expected[1]["grad_norm"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "tagging", "multiple_choice"])
def test_microbatches_and_meshes_give_the_gradient_of_the_whole_batch(kind):
    """In tagging, microbatches have different numbers of labelled tokens."""
    batch = tuned.make_batch(kind)
    if kind == "tagging":
        batch["labels"][:2] = np.where(np.arange(16) < 3, batch["labels"][:2], -100)
    whole = take_step(kind, batch)
    dropped = take_step(kind, batch, dropout=0.1)
    assert dropped[1]["loss"] != pytest.approx(whole[1]["loss"], rel=1e-3)
    parts = {"accumulation_steps": 4}
    assert_near(take_step(kind, batch, dropout=0.1, **parts), dropped)
    assert_near(take_step(kind, batch, remat="full"), whole)
    if kind == "classification":
        changes = {"dropout": 0.1, "mesh__shard_optimizer": True}
        assert_near(take_step(kind, batch, (2, 2, 2), **changes), dropped)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_distillation_does_not_depend_on_mesh_and_microbatches(kind):
    batch = tuned.make_batch(kind)
    if kind == "tagging":
        batch["labels"][:2] = np.where(np.arange(16) < 3, batch["labels"][:2], -100)
    whole = take_step(kind, batch, **TAUGHT)
    alone = take_step(kind, batch)
    assert whole[1]["grad_norm"] != pytest.approx(alone[1]["grad_norm"], rel=1e-2)
    parts = {"accumulation_steps": 4, "remat": "full"}
    assert_near(take_step(kind, batch, **TAUGHT, **parts), whole)
    split = {"mesh__shard_optimizer": True}
    assert_near(take_step(kind, batch, (2, 2, 2), **TAUGHT, **split), whole)


@pytest.mark.slow
def test_label_weight_scales_the_loss_on_labels():
    """A weight of 0.5 halves the loss if the teacher has no weight."""
    batch = tuned.make_batch("classification")
    nothing = TAUGHT | {"distill__logits_weight": 1e-9, "distill__states_weight": 0.0}
    half = take_step("classification", batch, **nothing)[1]["loss"]
    whole = take_step("classification", batch)[1]["loss"]
    assert half == pytest.approx(whole / 2, rel=1e-5)


@pytest.mark.slow
def test_a_non_finite_step_leaves_parameters_unchanged():
    batch = tuned.make_batch("classification")
    before = parameters.by_name(tuned.build("classification")[2])
    batch["weights"][0] = np.nan
    after, metrics = take_step("classification", batch)
    assert metrics["bad_steps_in_row"] == 1 and not np.isfinite(metrics["loss"])
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_the_learning_rate_warms_up_and_decays():
    recipe = tasks_config.from_config_dict(change("sst2")).recipe
    _, schedule = tuning_step.make_optimizer(recipe, 2e-5, 100)
    rates = [float(schedule(step)) for step in (0, 5, 10, 55, 100)]
    assert rates == pytest.approx([0, 1e-5, 1.8e-5, 0.9e-5, 0])


DISTILL = DistillConfig(
    teacher="x", label_weight=0.0, logits_weight=0.5, temperature=2.0, states_weight=1.0
)
every_kind = pytest.mark.parametrize("kind", TASKS)


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


def taught_loss(kind, student, teacher, batch, **changes) -> float:
    config = dataclasses.replace(DISTILL, **changes)
    task = tuned.make_task(kind)
    found = jax.jit(tuning_step.distillation_loss, static_argnums=(0, 4))(
        task, student, teacher, batch, config
    )
    return float(found)


@pytest.mark.parametrize(
    "kind", ["tagging", *(slow(k) for k in TASKS if k != "tagging")]
)
def test_loss_and_gradient_are_zero_for_a_copy_of_the_teacher(kind):
    batch = tuned.make_batch(kind)
    one, other = outputs(kind, batch, 0), outputs(kind, batch, 1)
    assert taught_loss(kind, one, one, batch) == pytest.approx(0, abs=1e-5)
    assert taught_loss(kind, other, one, batch, states_weight=0.0) > 1e-3
    assert taught_loss(kind, other, one, batch, logits_weight=0.0) > 1e-3


@every_kind
@pytest.mark.slow
def test_padding_rows_and_tokens_do_not_contribute(kind):
    batch = tuned.make_batch(kind)
    one, other = outputs(kind, batch, 0), outputs(kind, batch, 1)
    batch["weights"][2:] = 0
    expected = taught_loss(kind, other, one, batch)
    rows = len(one.states[0]) // 4  # rows per example
    is_real = (batch["sequence_ids"] > 0).reshape(-1, 16)
    is_real[2 * rows :] = False

    def change(x):
        return jnp.where(is_real[:, : x.shape[1], None], x, 7.0)

    states = [change(x) for x in other.states]
    first_B = np.arange(4).reshape(4, *[1] * (other.logits.ndim - 1)) < 2
    logits = jnp.where(first_B, other.logits, 3.0)
    assert taught_loss(kind, Outputs(logits, states), one, batch) == pytest.approx(
        expected
    )


def test_logits_are_compared_as_distributions():
    """The reference is SciPy's Kullback-Leibler divergence at a temperature."""
    random = np.random.default_rng(0)
    student, teacher = random.normal(size=(2, 4, 3)).astype(np.float32)

    def distances(kind):
        batch = {"weights": np.ones(4)}
        return tuned.make_task(kind).distances(student, teacher, batch, 2.0)[0]

    found = distances("classification")
    p, q = (scipy.special.softmax(x / 2, axis=1) for x in (teacher, student))
    expected = 4 * scipy.special.rel_entr(p, q).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    found = distances("multi_label")
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
    found = tuning_step.states_distance(student, teacher, batch)
    share = 1 - 1 / real[0].sum()
    np.testing.assert_allclose(found, [(4 * share + 16) / 2, 10, 10, 10], rtol=1e-6)
