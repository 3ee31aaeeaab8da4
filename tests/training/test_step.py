"""Tests of bert_jax.training.step, on several meshes and numbers of microbatches."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import OPTIMIZERS
from bert_jax.distributed import sharding
from bert_jax.training import losses as losses_lib
from bert_jax.training import optimizer as optimizer_lib
from bert_jax.training import step as step_lib
from tests.conftest import make_batch, make_config, slow, use_mesh

DROPOUT = {
    "model__hidden_dropout_prob": 0.1,
    "model__attention_probs_dropout_prob": 0.1,
    "model__num_hidden_layers": 1,  # halves the time of a compilation
}


def make_steps(config):
    """Returns a function that initializes the state, and the two steps."""
    graphdef, init = step_lib.init_state(config)
    train_step = step_lib.make_train_step(config, graphdef)
    return init, train_step, step_lib.make_eval_step(config, graphdef)


@functools.cache
def compiled(config, mesh_shape):
    """Returns compiled steps, which tests share: compiling them takes seconds."""
    mesh = use_mesh(*mesh_shape)
    _, step, eval_step = make_steps(config)
    # The initial state does not depend on accumulation and remat.
    init = initial_state(
        dataclasses.replace(config, accumulation_steps=1, remat="none"), mesh_shape
    )
    return mesh, init, jax.jit(step, donate_argnums=0), jax.jit(eval_step)


@functools.cache
def initial_state(config, mesh_shape):
    use_mesh(*mesh_shape)
    return step_lib.init_state(config)[1]


def train(config, mesh_shape, batches):
    """Returns the last state and the loss of each step, from the initial weights."""
    mesh, init, step, _ = compiled(config, mesh_shape)
    jax.set_mesh(mesh)
    state, losses = init(), []
    for batch in batches:
        state, metrics = step(state, sharding.place_batch(batch, mesh))
        jax.block_until_ready(state)  # simulated devices deadlock otherwise
        losses.append(float(metrics["loss"]))
    return state, losses


def for_any_mesh(**changes):
    """Returns a config, with dropout, that can be split over eight devices."""
    heads, phase = 8, {"global_batch_size": 32}
    return make_config(
        model__num_attention_heads=heads, phase=phase, **DROPOUT, **changes
    )


@functools.cache
def losses_of(mesh_shape, **changes):
    config = for_any_mesh(**changes)
    batches = [make_batch(config, seed) for seed in range(20)]
    return train(config, mesh_shape, batches)[1]


@pytest.mark.parametrize(
    ("mesh_shape", "changes"),
    [
        ((2, 2, 2), {}),
        slow((1, 8, 1), {}),
        slow((1, 1, 8), {}),
        slow((4, 2, 1), {"accumulation_steps": 4, "remat": "full"}),
        slow((1, 2, 4), {"accumulation_steps": 4, "remat": "full"}),
        slow((4, 1, 2), {"remat": "matmuls"}),
        slow((8, 1, 1), {"mesh__shard_optimizer": True}),
        slow((2, 2, 2), {"mesh__shard_optimizer": True}),
    ],
)
def test_every_mesh_computes_the_losses_of_one_device(mesh_shape, changes):
    """Over 20 steps, dropout masks are the same, and losses equal up to rounding."""
    expected = losses_of((1, 1, 1))
    found = losses_of(mesh_shape, **changes)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert expected[-1] != expected[0]


@functools.cache
def compiled_step(mesh_shape, **changes):
    """Returns the compiled step of a model that is large enough to compare sizes."""
    mesh = use_mesh(*mesh_shape)
    config = make_config(
        model__hidden_size=64,
        model__intermediate_size=256,
        model__num_hidden_layers=3,
        model__max_position_embeddings=128,
        phase={"sequence_length": 128, "max_predictions": 20},
        **changes,
    )
    init, step, _ = make_steps(config)
    batch = sharding.place_batch(make_batch(config), mesh)
    return jax.jit(step, donate_argnums=0).lower(init(), batch).compile()


@pytest.mark.slow
def test_remat_computes_more():
    """FLOPs are compared, because memory on a CPU does not depend on remat."""
    flops = {
        remat: compiled_step((1, 1, 1), remat=remat).cost_analysis()["flops"]
        for remat in ("none", "matmuls", "full")
    }
    # "full" adds a fourth pass over the layers, of which XLA merges some products with
    # those of the first one; "matmuls" repeats attention and norms. Without remat, the
    # GELU is computed again too.
    assert 1.1 < flops["full"] / flops["none"] < 1.4
    assert 1.002 < flops["matmuls"] / flops["none"] < flops["full"] / flops["none"]


@pytest.mark.slow
def test_a_sharded_optimizer_takes_less_memory():
    plain, split = (
        compiled_step((8, 1, 1), mesh__shard_optimizer=on)
        .memory_analysis()
        .argument_size_in_bytes
        for on in (False, True)
    )
    # Parameters and two moments: the moments of matrices shrink to an eighth, so 3
    # becomes 1.25.
    assert 0.4 < split / plain < 0.5


@pytest.mark.slow
def test_data_parallel_reduces_gradients_and_nothing_else():
    text = compiled_step((8, 1, 1)).as_text()
    collectives = re.findall(r" (all-\w+|reduce-scatter|collective-\w+)\(", text)
    # XLA fuses the sums of all gradients; the sums of metrics may be separate.
    assert set(collectives) == {"all-reduce"}
    assert len(collectives) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_an_optimizer_of_whole_tensors_is_the_same_when_sharded(name):
    """No device holds a whole tensor in this case."""
    config = make_config(
        optimizer__name=name, optimizer__schedule="cosine", optimizer__average_steps=3
    )
    config = dataclasses.replace(
        config, phases=(dataclasses.replace(config.phases[0], num_steps=5),)
    )
    batches = [make_batch(config, seed) for seed in range(5)]
    with jax.numpy_dtype_promotion("standard"):  # optax: int32 counts times floats
        expected, _ = train(config, (1, 1, 1), batches)
        found, _ = train(config, (2, 2, 2), batches)
    assert_near(found.params, expected.params)
    assert_near(found.average, expected.average)


def assert_near(a, b):
    close = functools.partial(np.testing.assert_allclose, atol=1e-5)
    jax.tree.map(close, a, b)


@pytest.mark.slow
def test_accumulation_equals_the_whole_batch():
    """Sums are divided globally, and dropout is that of the rows of the batch."""
    config = make_config(**DROPOUT)
    batches = [make_batch(config, seed) for seed in range(5)]
    expected, expected_losses = train(config, (1, 1, 1), batches)
    parts = dataclasses.replace(config, accumulation_steps=4)
    found, losses = train(parts, (2, 1, 1), batches)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert_near(found.params, expected.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", [OPTIMIZERS[0], OPTIMIZERS[-1]])
def test_moments_are_reset_at_the_start_of_a_phase(name):
    """With phases of two steps, it equals a new optimizer except for the schedule."""
    config = make_config(model__num_hidden_layers=1, optimizer__name=name)
    phase = dataclasses.replace(config.phases[0], num_steps=2)
    config = dataclasses.replace(config, phases=(phase, phase, phase))
    optimizer = dataclasses.replace(config.optimizer, reset_moments_by_phase=True)
    resetting = dataclasses.replace(config, optimizer=optimizer)
    batch = make_batch(config)
    tx, _ = optimizer_lib.make_optimizer(config)
    graphdef, init = step_lib.init_state(config)
    keeps, resets = (
        jax.jit(step_lib.make_train_step(c, graphdef)) for c in (config, resetting)
    )
    with jax.numpy_dtype_promotion("standard"):  # optax: int32 counts times floats
        state = init()
        for done in range(6):
            expected = keeps(state, batch)[0]
            found = resets(state, batch)[0]
            if done in (2, 4):
                fresh = tx.init(state.params)
                # The last one is the position in the schedule, which is kept.
                fresh = (*fresh[:-1], state.opt_state[-1])
                assert not trees_equal(found, expected)
                expected = keeps(dataclasses.replace(state, opt_state=fresh), batch)[0]
            assert trees_equal(found, expected)
            state = found


AVERAGED = make_config(
    model__num_hidden_layers=1,
    optimizer__average_steps=3,
    loss_weights__z_loss=0.1,
    phase={"num_steps": 6},
)


def test_weights_are_the_mean_of_the_parameters_over_the_last_steps():
    mesh, init, step, _ = compiled(AVERAGED, (1, 1, 1))
    good = make_batch(AVERAGED)
    bad = dict(good, masked_lm_weights=good["masked_lm_weights"] * np.nan)
    good, bad = (sharding.place_batch(batch, mesh) for batch in (good, bad))
    state, params = init(), []
    # A skipped update is not in the mean, and all steps after it are one later.
    for batch in (good, bad, good, good, good, good, bad, good):
        state, metrics = step(state, batch)
        params.append(jax.device_get(state.params))
        if state.step <= 5:
            jax.tree.map(np.testing.assert_array_equal, state.weights, state.params)
    assert metrics["loss"] == pytest.approx(
        metrics["masked_lm_loss"]
        + metrics["next_sentence_loss"]
        + 0.1 * metrics["z_loss"]
    )
    averaged = params[4], params[5], params[7]
    mean = jax.tree.map(lambda *x: np.mean(x, axis=0), *averaged)
    assert_near = functools.partial(np.testing.assert_allclose, atol=1e-7)
    jax.tree.map(assert_near, state.weights, mean)
    assert not trees_equal(state.weights, state.params)


def trees_equal(a, b) -> bool:
    """Compares up to rounding, because the programs fuse arithmetic differently."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-8) for x, y in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "poison, changes",
    [
        (np.nan, {}),
        (np.inf, {}),
        (np.nan, {"accumulation_steps": 4, "mesh__shard_optimizer": True}),
        (
            np.inf,
            {"optimizer__name": "lamb", "optimizer__reset_moments_by_phase": True},
        ),
    ],
)
def test_a_step_that_is_not_finite_changes_only_the_counts(poison, changes):
    config = make_config(**changes)
    use_mesh(2, 1, 2)
    init, step, _ = make_steps(config)
    step, schedule = jax.jit(step), optimizer_lib.make_schedule(config)
    good = make_batch(config)
    bad = dict(good, masked_lm_weights=good["masked_lm_weights"].copy())
    bad["masked_lm_weights"][0, 0] = poison
    with jax.numpy_dtype_promotion("standard"):  # optax: int32 counts times floats
        before, _ = step(init(), good)
        after, metrics = step(before, bad)
        assert not np.isfinite(metrics["loss"])
        assert metrics["bad_steps_in_row"] == 1
        jax.tree.map(
            np.testing.assert_array_equal,
            (after.params, after.opt_state),
            (before.params, before.opt_state),
        )
        assert (after.step, after.bad_steps, after.bad_steps_in_row) == (2, 1, 1)
        after, _ = step(after, bad)
        assert (after.step, after.bad_steps, after.bad_steps_in_row) == (3, 2, 2)
        later, metrics = step(after, good)
    assert np.isfinite(metrics["loss"]) and metrics["bad_steps_in_row"] == 0
    # The learning rate is that of the second update; skipped ones do not count.
    np.testing.assert_allclose(metrics["learning_rate"], schedule(1))
    assert (later.step, later.bad_steps, later.bad_steps_in_row) == (4, 2, 0)
    kept = jax.tree.leaves(jax.tree.map(np.array_equal, later.params, after.params))
    assert sum(kept) < len(kept) / 2


@pytest.mark.slow
def test_a_small_model_overfits_one_batch():
    config = make_config(optimizer__learning_rate=1e-2, phase={"num_steps": 80})
    _, losses = train(config, (1, 1, 1), [make_batch(config)] * 80)
    assert losses[0] > 4.5
    assert losses[-1] < 0.5


def test_the_seed_determines_all_bits_and_the_dropout():
    config = for_any_mesh()
    batches = [make_batch(config, seed) for seed in range(3)]
    first, losses = train(config, (1, 1, 1), batches)
    second, _ = train(config, (1, 1, 1), batches)
    jax.tree.map(np.testing.assert_array_equal, first, second)
    _, other = train(for_any_mesh(seed=1), (1, 1, 1), batches)
    assert losses != other


def test_unused_mask_slots_do_not_affect_the_loss():
    config = for_any_mesh()
    batch = make_batch(config)
    unused = batch["masked_lm_weights"] == 0
    changed = batch | {
        "masked_lm_ids": np.where(unused, 50, batch["masked_lm_ids"]).astype(np.int32)
    }
    _, losses = train(config, (1, 1, 1), [batch])
    _, same = train(config, (1, 1, 1), [changed])
    assert losses == same


def test_metrics_are_means_over_the_batch():
    mesh, init, step, eval_step = compiled(AVERAGED, (1, 1, 1))
    batch = make_batch(AVERAGED)
    placed = sharding.place_batch(batch, mesh)
    sums, counts = eval_step(init().params, placed)
    _, metrics = step(init(), placed)
    assert float(counts["masked_lm_loss"]) == batch["masked_lm_weights"].sum()
    assert float(counts["next_sentence_loss"]) == len(batch["input_ids"])
    for name in sums:
        np.testing.assert_allclose(
            metrics[name], sums[name] / counts[name], rtol=1e-5, err_msg=name
        )
    np.testing.assert_allclose(
        metrics["padding_efficiency"], batch["sequence_ids"].mean(), rtol=1e-6
    )
    assert float(metrics["grad_norm"]) > 0
    assert float(metrics["learning_rate"]) == 0.0  # of step 0 of the warmup


@pytest.mark.slow
def test_objectives_are_weighted_in_loss_and_gradient():
    """The gradients are of parameters that only one of the objectives reaches."""
    batch = make_batch(make_config())
    config = make_config(loss_weights__masked_lm=0.5, loss_weights__next_sentence=3.0)
    with_z_loss = make_config(loss_weights__z_loss=0.01)
    gradients, losses = [], []
    for each in (make_config(), config, with_z_loss):
        graphdef, init = step_lib.init_state(each)
        counts = losses_lib.loss_counts(batch)

        def loss(params, each=each, graphdef=graphdef, counts=counts):
            sums = losses_lib.loss_sums(
                graphdef,
                params,
                {name: jnp.asarray(rows) for name, rows in batch.items()},
                True,
                dropout_key=None,
                dtype=jnp.dtype(jnp.float32),
                z_loss=True,
            )
            means = losses_lib.mean_metrics(sums, counts)
            return losses_lib.total_loss(means, each.loss_weights), means

        grad = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (total, means), grads = grad(init().params)
        gradients.append(grads)
        losses.append({name: means[name] for name in means if "loss" in name})
        losses[-1]["total"] = total
    plain, weighted, more = losses
    masked_lm, next_sentence = plain["masked_lm_loss"], plain["next_sentence_loss"]
    np.testing.assert_allclose(plain["total"], masked_lm + next_sentence, rtol=1e-6)
    expected = 0.5 * masked_lm + 3 * next_sentence
    np.testing.assert_allclose(weighted["total"], expected, rtol=1e-6)
    expected = plain["total"] + 0.01 * plain["z_loss"]
    np.testing.assert_allclose(more["total"], expected, rtol=1e-6)
    # Random weights give all V tokens about the same logit.
    assert plain["z_loss"] == pytest.approx(np.log(97) ** 2, rel=0.05)
    for name, factor, of_z_loss in (("transform", 0.5, 1e-3), ("next_sentence", 3, 0)):
        once, by_weight, z = (np.asarray(g[name]["kernel"][...]) for g in gradients)
        np.testing.assert_allclose(by_weight, factor * once, atol=1e-7)
        share = np.linalg.norm(z - once) / np.linalg.norm(once)
        assert share > of_z_loss if of_z_loss else share < 1e-6


def test_compute_dtype_follows_the_backend():
    assert step_lib.compute_dtype("auto") == jnp.float32  # auto, on a CPU
    assert step_lib.compute_dtype("bfloat16") == jnp.bfloat16


def products(program: str) -> list[tuple[tuple[str, ...], str]]:
    """Returns the factor dtypes and the precision of each product in a program."""
    found = re.findall(
        r"stablehlo\.dot_general .*? : \(tensor<([^>]*)>, tensor<([^>]*)>\)", program
    )
    lines = [line for line in program.splitlines() if "stablehlo.dot_general" in line]
    assert len(found) == len(lines) > 0
    return [
        (
            tuple(factor.split("x")[-1] for factor in factors),
            "/".join(re.findall(r"precision = \[(\w+), (\w+)\]", line)[0]),
        )
        for factors, line in zip(found, lines, strict=True)
    ]


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.slow
def test_float32_products_are_not_rounded_on_any_platform(monkeypatch, name, platform):
    """By default, TPUs round float32 factors to bfloat16, and GPUs to TF32."""
    monkeypatch.setattr(sharding, "platform", lambda: platform)
    config = make_config(compute_dtype=name)
    init, train_step, eval_step = make_steps(config)
    state = init()
    batch = sharding.place_batch(make_batch(config), use_mesh(1, 1, 1))
    found = products(jax.jit(train_step).lower(state, batch).as_text())
    found += products(jax.jit(eval_step).lower(state.params, batch).as_text())
    exact = "HIGHEST/HIGHEST"
    low = ("bf16", "bf16"), "DEFAULT/DEFAULT"
    if name == "float32":
        # On a GPU, these are the exact gradients of the three tables of embeddings.
        assert found.count(low) == (3 if platform == "gpu" else 0)
        assert set(found) - {low} == {(("f32", "f32"), exact)}
        return
    # The embeddings are computed in float32 in either case.
    embeddings = [kind for kind in found if kind == (("f32", "f32"), exact)]
    assert len(embeddings) == (0 if platform == "gpu" else 3)
    assert low in found
    assert not [kind for kind in found if "bf16" in kind[0] and kind[1] == exact]


REDUCED = {"gradient_reduction_dtype": "bfloat16"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, "float32"),
        (REDUCED, "bfloat16"),
        (REDUCED | {"accumulation_steps": 2}, "float32"),
        (REDUCED | {"compute_dtype": "float32"}, "float32"),
    ],
)
def test_gradients_of_kernels_have_gradient_reduction_dtype(changes, dtype):
    """A product has the dtype of the sum over devices, see test_hlo.py."""
    config = make_config(**{"compute_dtype": "bfloat16"} | changes)
    init, train_step, _ = make_steps(config)
    batch = sharding.place_batch(make_batch(config), use_mesh(2, 1, 1))
    program = jax.jit(train_step).lower(init(), batch).as_text()
    kernel = "32x64x"  # the intermediate kernel of a layer; no activation has it
    found = {
        line.split("->")[-1].split("x")[-1].split(">")[0]
        for line in program.splitlines()
        if "stablehlo.dot_general" in line and f"-> tensor<{kernel}" in line
    }
    assert found == {{"float32": "f32", "bfloat16": "bf16"}[dtype]}


@pytest.mark.parametrize(
    ("mesh_shape", "name"),
    [((1, 1, 1), "adamw_bert"), ((2, 2, 2), "adamw_bert"), slow((2, 2, 2), "muon")],
)
def test_the_abstract_state_is_that_of_the_initial_state(mesh_shape, name):
    """Otherwise a step compiled for it would refuse the state, or reshard it."""
    config = make_config(
        mesh__shard_optimizer=True, model__num_hidden_layers=1, optimizer__name=name
    )
    mesh = use_mesh(*mesh_shape)
    init, _, _ = make_steps(config)
    found, state = sharding.on_mesh(jax.eval_shape(init), mesh), init()
    assert jax.tree.structure(found) == jax.tree.structure(state)
    for abstract, array in zip(
        jax.tree.leaves(found), jax.tree.leaves(state), strict=True
    ):
        assert abstract.shape == array.shape and abstract.dtype == array.dtype
        assert abstract.sharding == array.sharding
        assert abstract.weak_type == array.weak_type
