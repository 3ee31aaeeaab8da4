"""Tests of the ranking of checkpoints in bert_jax.training.saver."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from bert_jax.config.schema import EvalConfig
from bert_jax.monitoring.writer import HELD_OUT_SETTINGS
from bert_jax.training.saver import Ranking, read_ranking
from tests.commands import run_well, small_run, write_text
from tests.conftest import make_config
from tests.runs import lines


def held_out(loss, **settings):
    return {"eval_loss": loss, "eval_num_sequences": 64} | settings


def test_the_lowest_losses_are_preserved():
    ranking = Ranking(2)
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        ranking.add(step, 0, held_out(loss))
    checkpoints = [SimpleNamespace(step=step) for step in (1, 2, 3, 4)]
    preserved = ranking.should_preserve(checkpoints, context=None)
    assert preserved == [False, True, True, False]
    ranking.add(5, 0, held_out(2.5))
    assert not ranking.is_best(5, [1, 2, 3])
    assert ranking.is_best(5, [1, 2])  # step 3 was evaluated and not saved
    assert not ranking.is_best(6, [1])  # it was not evaluated


@pytest.mark.parametrize(
    "setting", [{"eval_masked_lm_prob": 0.3}, {"eval_num_sequences": 128}]
)
def test_evaluations_with_other_settings_are_ranked_separately(tmp_path, setting):
    """config.eval may change when a run resumes, and the loss changes with it."""
    written = [
        {"step": 10} | held_out(1.0),
        {"step": 20} | held_out(3.0, **setting),
        {"step": 30} | held_out(2.0, **setting),
    ]
    text = "".join(json.dumps(line) + "\n" for line in written)
    (tmp_path / "metrics.jsonl").write_text(text)
    config = make_config(checkpoint__keep_best=1)
    assert read_ranking(str(tmp_path), config, 20).is_best(20, [10])
    ranking = read_ranking(str(tmp_path), config, 30)
    assert ranking.is_best(10, [20, 30]) and ranking.is_best(30, [10, 20])
    assert not ranking.is_best(20, [10, 30])


def test_every_key_of_an_evaluation_is_compared_or_does_not_change_the_loss():
    keys = {field.name for field in dataclasses.fields(EvalConfig)}
    assert keys == {"every_steps", "probes", *HELD_OUT_SETTINGS}


@pytest.mark.parametrize(
    ("phases", "losses", "best"),
    [
        ((0, 1), (1.0, 4.0), {10, 20}),  # a loss depends on the phase's row length
        ((0, 0), (1.0, 1.0), {10}),  # the earlier of equal ones
        ((0, 0), (float("nan"), 9.0), {20}),
    ],
)
def test_the_best_of_each_phase(phases, losses, best):
    ranking = Ranking(1)
    for step, phase, loss in zip((10, 20), phases, losses, strict=True):
        ranking.add(step, phase, held_out(loss))
    assert {step for step in (10, 20) if ranking.is_best(step, [10, 20])} == best


def test_losses_of_undone_steps_are_dropped():
    ranking = Ranking(1)
    ranking.add(10, 0, held_out(2.0))
    ranking.add(20, 0, held_out(1.0))
    ranking.drop_after(15)
    assert ranking.is_best(10, [20])


def test_losses_of_earlier_calls_are_read(tmp_path):
    config = make_config(checkpoint__keep_best=1, phase={"num_steps": 20})
    config = dataclasses.replace(config, phases=config.phases * 2)
    written = [
        {"step": 10, "eval_loss": 2.0},
        {"step": 20, "loss": 0.5},
        {"step": 20, "eval_loss": 1.0},  # after the last step of the first phase
        {"step": 30, "eval_loss": None},
        {"step": 40, "eval_loss": 0.1},
    ]
    text = "".join(json.dumps(line) + "\n" for line in written)
    (tmp_path / "metrics.jsonl").write_text(text)
    ranking = read_ranking(str(tmp_path), config, 30)
    assert ranking._best([10, 20, 30, 40]) == {20, 30}


def saved_steps(workdir):
    directory = workdir / "checkpoints"
    return {int(path.name) for path in directory.iterdir() if path.name.isdigit()}


TWO_PHASES = """
from tests import one_phase


def get_config():
    config = one_phase.get_config()
    first = config.phases[0]
    first.update(num_steps=21, global_batch_size=16, sequence_length=16)
    first.max_predictions = 3
    config.phases = (first, dict(first, sequence_length=32, max_predictions=5))
    return config
"""


@pytest.mark.slow
def test_a_run_keeps_the_best_checkpoint_of_each_phase(tmp_path):
    """No evaluation but the last is at a step at which every_steps saves."""
    write_text(tmp_path / "documents.txt")
    (tmp_path / "two_phases.py").write_text(TWO_PHASES)
    workdir = tmp_path / "run"
    changes = {
        "eval.every_steps": 6,
        "checkpoint.every_steps": 1000,
        "checkpoint.keep": 1,
        "checkpoint.keep_best": 1,
        "data.next_sentence": False,
        "optimizer.learning_rate": 3e-2,  # so high that the last is not always best
    }
    arguments = small_run(tmp_path, **changes)[1:]
    arguments = [a for a in arguments if not a.startswith("--config.phases[0]")]
    stdout = run_well(
        "bert_jax.train",
        f"--config={tmp_path}/two_phases.py",
        *arguments,
        f"--workdir={workdir}",
    )
    name = "eval_masked_lm_loss"  # equals the loss without next-sentence pairs
    losses = {x["step"]: x[name] for x in lines(workdir) if name in x}
    assert set(losses) == {6, 12, 18, 24, 30, 36, 42}, stdout
    first, second = (6, 12, 18), (24, 30, 36, 42)
    best = {min(phase, key=lambda step: losses[step]) for phase in (first, second)}
    assert saved_steps(workdir) == best | {42}
    listed = run_well("bert_jax.checkpoint", "list", f"--workdir={workdir}")
    for step in best:
        assert f"{losses[step]:.4f}" in listed
