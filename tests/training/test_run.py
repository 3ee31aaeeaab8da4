"""Tests of the parts of a run that are called between its steps."""

from types import SimpleNamespace
from typing import Any

from bert_jax.checkpoint import best
from bert_jax.training.budget import Budget
from bert_jax.training.run import Run
from tests.conftest import make_config
from tests.monitoring.test_monitor import open_monitor, step_metrics
from tests.runs import lines


def test_steps_are_logged_before_an_evaluation_starts(tmp_path):
    """Otherwise, their rate would include the evaluation."""
    monitor = open_monitor(tmp_path)

    def evaluate(state, phase_index):
        assert [line["step"] for line in lines(tmp_path)] == [1]
        losses = {"eval_loss": 1.0, "eval_masked_lm_loss": 1.0}
        return losses | {"eval_masked_lm_accuracy": 0.5}

    state: Any = None
    run: Any = SimpleNamespace(
        monitor=monitor,
        held_out=SimpleNamespace(evaluate=evaluate),
        ranking=best.Ranking(0),
        budget=Budget(make_config(), str(tmp_path), None, 0.0),
        config=make_config(),
    )
    monitor.step(1, 0, step_metrics(1.0))
    assert not Run.evaluate(run, 1, 0, state)
    assert [line["step"] for line in lines(tmp_path)] == [1, 1]
