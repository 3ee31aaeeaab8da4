"""Tests of the ranking of checkpoints in bert_jax.training.saver."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from bert_jax.config.schema import EvalConfig
from bert_jax.monitoring.writer import HELD_OUT_SETTINGS
from bert_jax.training.saver import Ranking, read_ranking
from tests.conftest import make_config


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
