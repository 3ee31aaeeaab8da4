"""Tests of bert_jax.training.saver, which train.py calls between steps."""

from types import SimpleNamespace
from typing import Any

from bert_jax.training.budget import Budget
from bert_jax.training.saver import Ranking, Saver
from tests.conftest import make_config
from tests.monitoring.test_monitor import open_monitor, step_metrics
from tests.runs import lines


def make_saver(tmp_path, **changes):
    """Returns a saver whose evaluations find the steps before in the log."""
    config, monitor = make_config(**changes), open_monitor(tmp_path)

    def evaluate(state, phase_index):
        assert lines(tmp_path)[-1]["step"] == state
        losses = {"eval_loss": 1.0, "eval_masked_lm_loss": 1.0}
        return losses | {"eval_masked_lm_accuracy": 0.5}

    held_out: Any = SimpleNamespace(evaluate=evaluate, exists=True)
    checkpoints: Any = SimpleNamespace(workdir=str(tmp_path), steps=lambda: [])
    budget = Budget(config, str(tmp_path), 0, None, began=0.0)
    ranking = Ranking(config.checkpoint.keep_best)
    return Saver(config, checkpoints, ranking, held_out, budget, monitor)


def test_steps_are_logged_before_an_evaluation_starts(tmp_path):
    """Otherwise, their rate would include the evaluation."""
    saver = make_saver(tmp_path, checkpoint__keep_best=0, eval__every_steps=1)
    saver.monitor.step(1, 0, step_metrics(1.0))
    assert not saver.evaluate_if_due(1, 1)
    assert [line["step"] for line in lines(tmp_path)] == [1, 1]


def test_the_best_state_is_saved_when_it_is_evaluated(tmp_path):
    saver = make_saver(tmp_path, checkpoint__keep_best=1, eval__every_steps=1)
    for step in (1, 20):  # of equal ones, the earlier is the best
        saver.monitor.step(step, 0, step_metrics(1.0))
        assert saver.evaluate_if_due(step, step) == (step == 1)
        saver.checkpoints.steps = lambda: [1]


def test_a_step_to_keep_is_saved(tmp_path):
    config = {"checkpoint__every_steps": 8, "checkpoint__keep_steps": (3, 12)}
    saver = make_saver(tmp_path, **config)
    saved = [step for step in range(1, 21) if saver.is_time_to_save(step)]
    assert saved == [3, 8, 12, 16, 20]


def test_a_run_is_evaluated_and_saved_at_the_start_of_its_decay(tmp_path):
    """This measures how long both will take at the end."""
    budget = {"budget_hours": 1.0, "optimizer__schedule": "wsd"}
    saver = make_saver(
        tmp_path, checkpoint__keep_best=0, checkpoint__every_steps=100, **budget
    )
    for step in (15, 16, 17):  # of 20
        saver.monitor.step(step, 0, step_metrics(1.0))
        assert not saver.evaluate_if_due(step, step)
        assert saver.is_time_to_save(step) == (step == 16)
    evaluated = [line["step"] for line in lines(tmp_path) if "eval_loss" in line]
    assert evaluated == [16]
