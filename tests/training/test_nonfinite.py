"""Tests of bert_jax.training.nonfinite."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import errors
from bert_jax.data.corpus import build
from bert_jax.inspect_batch import rows
from bert_jax.phases import Position, Skip
from bert_jax.training import nonfinite, optimizer
from bert_jax.training import step as step_lib
from tests.commands import write_text
from tests.conftest import make_config, use_mesh

POSITION = Position("corpus")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nonfinite")
    write_text(directory / "text.txt", 300)
    config = make_config(
        data__sources=(f"text:{directory}/*.txt",),
        data__corpus_dir=str(directory / "corpus"),
        data__num_shards=4,
        data__num_streams=2,
        guard__max_bad_steps=3,
    )
    return config, build.find_corpus(config)


def step_metrics(bad_steps_in_row):
    value = np.float32(np.nan if bad_steps_in_row else 2.0)
    return {
        "loss": value,
        "masked_lm_loss": value,
        "grad_norm": np.float32(np.inf if bad_steps_in_row else 1.0),
        "bad_steps_in_row": np.int32(bad_steps_in_row),
    }


def test_a_bad_step_is_reported_and_recorded_with_its_rows(made, tmp_path):
    config, corpus = made
    logged = []
    guard = nonfinite.Guard(config, corpus, POSITION, 0, str(tmp_path), logged.append)
    guard.check(3, [step_metrics(n) for n in (0, 0, 0)])
    assert not logged and not list(tmp_path.iterdir())
    guard.check(6, [step_metrics(n) for n in (0, 1, 0)])
    (text,) = logged
    assert text.startswith("step 5 not finite (loss nan, gradient norm inf): update")
    (text,) = (tmp_path / nonfinite.BAD_STEPS_FILE).read_text().splitlines()
    record = json.loads(text, parse_constant=pytest.fail)
    assert (record["step"], record["phase"], record["batch"]) == (5, 0, 4)
    assert (record["loss"], record["grad_norm"]) == ("nan", "inf")
    # The recorded rows are those that inspect_batch shows for this step.
    shown = [
        (row.shard, row.epoch, row.index)
        for row in rows.read_step(corpus, config, 5).rows
    ]
    recorded = [
        (part["shard"], part["epoch"], row)
        for part in record["rows"]
        for row in range(part["first"], part["stop"])
    ]
    assert recorded == shown and len(shown) == 8


def test_recorded_batches_are_those_after_skipped_ones(made, tmp_path):
    config, corpus = made
    skipped = Position("corpus", (Skip(0, 2, 7),))
    guard = nonfinite.Guard(config, corpus, skipped, 0, str(tmp_path), print)
    guard.check(2, [step_metrics(1)])
    guard.check(5, [step_metrics(1)])
    lines = (tmp_path / nonfinite.BAD_STEPS_FILE).read_text().splitlines()
    assert [json.loads(line)["batch"] for line in lines] == [1, 11]


def test_too_many_in_a_row_end_the_run(made):
    config, corpus = made
    logged = []
    guard = nonfinite.Guard(config, corpus, POSITION, 0, None, logged.append)
    guard.check(4, [step_metrics(n) for n in (0, 1, 2)])
    assert logged[0].startswith("2 steps not finite")
    with pytest.raises(errors.DivergedError, match="in the last 3 steps, up to step 5"):
        guard.check(7, [step_metrics(n) for n in (3, 4, 5)])
    assert errors.DivergedError.exit_code == 77


def test_diagnose_names_the_parameters_that_are_not_finite():
    good = {"a": jnp.ones(3), "b": {"c": jnp.zeros((2, 2))}}
    reason = nonfinite.diagnose(good, "a run", 7)
    assert reason.startswith("all parameters are finite")
    command = "python -m bert_jax.inspect_batch '--workdir=a run' --step=7"
    assert reason.endswith(f"inspect the rows with: {command}")
    bad = {"a": jnp.ones(3), "b": {"c": jnp.full((2, 2), jnp.nan)}}
    assert nonfinite.diagnose(bad, "run", 7) == "1 parameters are not finite: b.c"


def test_records_of_repeated_steps_are_dropped(made, tmp_path):
    config, corpus = made

    def steps_after(position, first_step):
        nonfinite.Guard(config, corpus, position, first_step, str(tmp_path), print)
        texts = (tmp_path / nonfinite.BAD_STEPS_FILE).read_text().splitlines()
        return [json.loads(text)["step"] for text in texts]

    guard = nonfinite.Guard(config, corpus, POSITION, 0, str(tmp_path), print)
    guard.check(4, [step_metrics(1)])
    guard.check(9, [step_metrics(1)])
    assert steps_after(POSITION, 9) == [4, 9]
    # Records of steps that a rollback undid are kept.
    assert steps_after(Position("corpus", rollbacks=1), 5) == [4, 9]
    assert steps_after(POSITION, 5) == [4]


def test_a_state_that_is_not_finite_is_an_error():
    config = make_config(model__num_hidden_layers=1)
    use_mesh(2, 1, 1)
    _, init = step_lib.init_state(config, optimizer.make_optimizer(config)[0])
    state = init()
    nonfinite.check_finite(3, state)
    leaves, tree = jax.tree.flatten(state)
    index = next(i for i, x in enumerate(leaves) if x.ndim == 2)
    leaves[index] = leaves[index] * np.float32(np.inf)
    with pytest.raises(errors.DivergedError, match="not finite, up to step 3"):
        nonfinite.check_finite(3, jax.tree.unflatten(tree, leaves))
