"""Tests of bert_jax.training.stepper: batches across phases and skips, and replays."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import phases
from bert_jax.errors import CorruptError
from bert_jax.training import compilation, stepper
from bert_jax.training import step as step_lib
from bert_jax.training.stepper import training_batches
from tests import corpora
from tests.conftest import make_batch, make_config, two_phases, use_mesh


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The config, corpus and mesh of a run of two phases."""
    directory = tmp_path_factory.mktemp("input")
    config, corpus = corpora.of_text(directory, phase={"num_steps": 5})
    config = two_phases(config, num_steps=4, sequence_length=24)
    return SimpleNamespace(config=config, corpus=corpus, mesh=use_mesh(2, 1, 1))


def batches_of_phase(run, phase_index):
    options = {"seed": run.config.seed, "phase_index": phase_index}
    return corpora.batches(run.corpus, run.config, **options)


@pytest.mark.parametrize(
    ("first_step", "skips"),
    [
        (0, ()),
        (3, ()),
        (6, ()),
        (3, (phases.Skip(0, 3, 4),)),
        (2, (phases.Skip(0, 2, 3), phases.Skip(1, 0, 2))),
        (1, (phases.Skip(0, 3, 1), phases.Skip(0, 5, 2), phases.Skip(1, 2, 2))),
    ],
)
def test_each_step_takes_its_batch_across_phases_and_skips(run, first_step, skips):
    use_mesh(2, 1, 1)
    known = [
        list(zip(range(9), batches_of_phase(run, i), strict=False)) for i in (0, 1)
    ]
    found = list(training_batches(run.corpus, run.config, run.mesh, first_step, skips))
    assert len(found) == 9 - first_step
    for step, (number, phase_index, batch) in enumerate(found, start=first_step):
        assert number == step + 1
        expected_phase, batch_number = phases.batch_of(run.config, step, skips)
        assert phase_index == expected_phase
        _, expected = known[phase_index][batch_number]
        for name, rows in expected.items():
            np.testing.assert_array_equal(batch[name], rows, err_msg=name)
    assert isinstance(found[0][2]["input_ids"], jax.Array)


# -------------------------------------------------------------------------- replays


@pytest.mark.slow
def test_a_repeated_step_gives_the_same_bits():
    config = make_config(model__hidden_dropout_prob=0.1)
    use_mesh(2, 1, 2)
    graphdef, init = step_lib.init_state(config)
    train_step = step_lib.make_train_step(config, graphdef)
    state = init()
    with jax.numpy_dtype_promotion("standard"):  # optax: int32 counts times floats
        replayed = compilation.jit(train_step, donates_state=False)
        stepper.replay(replayed, 3, state, make_batch(config))
    jax.block_until_ready(state)  # it was not donated


def test_an_array_with_a_different_bit_is_named():
    """The second result has a flipped bit, as if a chip had computed it wrong."""
    weights = {"a": jnp.arange(4.0), "b": {"c": jnp.ones(3)}}
    flipped = np.arange(4.0, dtype=np.float32)
    flipped.view(np.uint32)[2] ^= 1  # the last bit of the mantissa
    answers = [weights, {**weights, "a": jnp.asarray(flipped)}]
    with pytest.raises(CorruptError, match="step 7 .* 1 arrays differ: a., so a chip"):
        stepper.replay(lambda state, batch: answers.pop(0), 7, None, None)


def differing(a, b):
    return stepper.differing_arrays({"x": a}, {"x": b})


def test_bits_are_compared_not_values():
    nan = jnp.array([np.nan, 1.0])
    assert differing(nan, nan) == []
    assert differing(jnp.zeros(2), -jnp.zeros(2)) == ["x"]
    assert differing(jnp.arange(3), jnp.arange(3) + 1) == ["x"]


def test_each_copy_of_a_replicated_array_is_compared():
    """The copy on one device may be wrong."""
    mesh = use_mesh(4, 1, 1)
    layout = jax.NamedSharding(mesh, jax.P())
    good = np.ones(3, np.float32)

    def copies(of_last):
        values = [good] * 3 + [of_last]
        devices = mesh.devices.ravel()
        arrays = [jax.device_put(v, d) for v, d in zip(values, devices, strict=True)]
        return jax.make_array_from_single_device_arrays((3,), layout, arrays)

    assert differing(copies(good), copies(good)) == []
    assert differing(copies(good), copies(good + 1)) == ["x"]
