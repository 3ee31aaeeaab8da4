"""Tests of bert_jax.training.budget."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.checkpoint import integrity
from bert_jax.monitoring import goodput, writer
from bert_jax.training import budget as budget_lib
from bert_jax.training import compilation, optimizer
from bert_jax.training import step as step_lib
from bert_jax.training.budget import MIN_STEPS, SUMMARY_SECS, Budget, Costs, Plan
from tests.commands import run_until, run_well, small_run
from tests.conftest import make_batch, make_config
from tests.runs import lines

HOUR = 3600.0
WSD = {"optimizer__schedule": "wsd", "budget_hours": 1.0}
MANY = {"num_steps": 1_000_000}


@pytest.fixture
def clock(monkeypatch):
    """Replaces the clock of budgets; its `now` is in seconds."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(budget_lib, "clock", lambda: clock.now)
    return clock


def log(workdir, step, seconds):
    """Appends a line with the running time of all calls to metrics.jsonl."""
    parts = dict.fromkeys(goodput.PARTS, 0.0) | {"steps": seconds, "down": 1e6}
    line = {"step": step, "time": 0.0} | {f"seconds_{k}": v for k, v in parts.items()}
    with open(workdir / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def simulate(
    config, workdir, clock, secs_per_step, *, evaluation=8.0, kill_at=None, first=0
):
    """Runs a budget on a simulated machine, in calls that end at `kill_at` and the end.

    Args:
      secs_per_step: function from the time to the seconds of a step.
      evaluation: seconds of an evaluation and of a save.
      kill_at: the time of a kill, which loses the steps since the last checkpoint.

    Returns:
      The plan, and the factors of the rate by step.
    """
    begin, factors, checkpoint = clock.now, {}, (first, None)
    while True:
        step, saved = checkpoint
        began = clock.now
        clock.now += 20.0  # start-up
        budget = Budget(config, str(workdir), step, saved, began)
        busy = 0.0
        first_log_line = step + config.log_every_steps
        while step < budget.last_step and (kill_at is None or clock.now < kill_at):
            step += 1
            (factor,) = budget.arguments(step)
            if step <= first_log_line:
                assert factors.setdefault(step, float(factor)) == float(factor)
            factors[step] = float(factor)
            secs = secs_per_step(clock.now - begin)
            clock.now, busy = clock.now + secs, busy + secs
            budget.update(step, busy, last_save=evaluation if saved else 0.0)
            is_due = step == budget.last_step or budget.starts_decay(step)
            if is_due or step % config.eval.every_steps == 0:
                with budget.timing("evaluation"):
                    clock.now += evaluation
            if is_due or step % 100 == 0:
                saved = json.loads(json.dumps(budget.saved))
                checkpoint = step, saved
                with budget.timing("save"):
                    clock.now += evaluation
            if step % config.log_every_steps == 0:
                log(workdir, step, clock.now - begin)
        if step == budget.last_step:
            clock.now += SUMMARY_SECS
            return budget.plan, factors
        kill_at = None


def speeding_up(seconds):
    return 5.0 if seconds < 1500 else 2.0


def slowing_down(seconds):
    return 2.0 if seconds < 3000 else 5.0  # in the decay


@pytest.mark.parametrize("kill_at", [None, 2000.0, 4200.0])
@pytest.mark.parametrize("secs_per_step", [lambda _: 3.0, speeding_up, slowing_down])
def test_a_run_ends_with_its_hours_and_the_rate_of_the_end(
    tmp_path, clock, secs_per_step, kill_at
):
    config = make_config(**WSD, eval__every_steps=100, log_every_steps=2, phase=MANY)
    start = clock.now
    plan, factors = simulate(config, tmp_path, clock, secs_per_step, kill_at=kill_at)
    # A log line, and another one that the kill loses: 2 steps of 5 s each.
    assert clock.now - start == pytest.approx(HOUR, abs=20.0 if kill_at else 10.0)
    assert factors.keys() == set(range(1, plan.last_step + 1))
    decayed = [step for step, factor in factors.items() if factor < 1.0]
    assert 0.1 < (plan.last_step - decayed[0]) / plan.last_step < 0.5
    rates = np.array([factors[step] for step in sorted(factors)])
    assert (np.diff(rates) <= 0).all()
    assert rates[-1] == 0.0 and rates[-2] < 0.2


@pytest.mark.parametrize(("first", "start"), [(0, 800), (700, 800), (900, 900)])
def test_a_run_that_takes_all_its_steps_decays_in_their_last_fifth(
    tmp_path, clock, first, start
):
    """A branch that begins in the last fifth decays over its own steps."""
    config = make_config(**WSD, log_every_steps=20, phase={"num_steps": 1000})
    plan, factors = simulate(config, tmp_path, clock, lambda _: 0.3, first=first)
    assert plan.last_step == 1000 and min(factors) == first + 1
    for step, factor in factors.items():
        done = max(0, step - start) / (1000 - start)
        assert factor == pytest.approx(1 - done**0.5, abs=1e-6)


def test_a_plan_counts_the_evaluations_and_saves_before_the_end():
    config = make_config(
        **WSD, phase=MANY, eval__every_steps=100, checkpoint__every_steps=500
    )
    costs = Costs(step=1.0, evaluation=10.0, save=5.0, last_save=7.0)
    plan = budget_lib.first_plan(config)
    assert plan == Plan(800_000, 0.0, 1_000_000)
    ending = costs.evaluation + costs.last_save + SUMMARY_SECS
    # 400 steps with evaluations at 300, 400, 500 and 600 and a save at 500.
    left = ending + 400 + 4 * 10 + 5
    found = budget_lib.new_plan(plan, 250, config, costs, left)
    assert found == Plan(250, 0.0, 650)  # the last fifth of the hour has begun
    found = budget_lib.new_plan(plan, 250, config, costs, left - 1)
    assert found.last_step == 649


def test_a_decay_takes_a_few_steps_if_there_is_no_time_left():
    config, costs = make_config(**WSD, phase=MANY), Costs(step=1.0)
    plan = budget_lib.first_plan(config)
    for step in (1000, 1002, 1007, 1010):  # later plans do not extend it
        plan = budget_lib.new_plan(plan, step, config, costs, -100.0)
        assert plan.last_step == 1000 + MIN_STEPS
    assert optimizer.decay_factor(plan.progress_at(plan.last_step - 1)) < 0.03


@pytest.mark.slow
def test_the_factor_scales_the_update_without_a_new_program():
    config = make_config(**WSD, optimizer__warmup_steps=0, phase=MANY)
    graphdef, init = step_lib.init_state(config)
    train_step = step_lib.make_train_step(config, graphdef)
    mesh = jax.sharding.get_mesh()
    state = init()
    compiled = compilation.compile_phase(
        config, jax.jit(train_step), state, mesh, phase_index=0
    )
    moved, rates = [], []
    for factor in (1.0, 0.25):
        after, metrics = compiled(state, make_batch(config), np.float32(factor))
        moved.append(jax.tree.map(jnp.subtract, after.params, state.params))
        rates.append(float(metrics["learning_rate"]))
    assert rates[1] == pytest.approx(0.25 * rates[0]) and rates[0] > 0
    for whole, part in zip(*map(jax.tree.leaves, moved), strict=True):
        np.testing.assert_allclose(part, 0.25 * whole, atol=1e-7)


def test_the_time_between_calls_does_not_count(tmp_path, clock):
    log(tmp_path, 1, HOUR - 2.0)
    budget = Budget(make_config(**WSD), str(tmp_path), 0, None, began=clock.now)
    clock.now += 12.0
    budget.update(1, 1.0, 0.0)
    assert budget.excess() == 10.0


def test_the_excess_is_that_of_a_call_that_took_steps(tmp_path, clock):
    budget = Budget(make_config(**WSD), str(tmp_path), 0, None, began=clock.now)
    clock.now += HOUR + 12.0
    assert budget.excess() == 0.0  # the run was complete
    budget.update(1, 1.0, 0.0)
    assert budget.excess() == 12.0


@pytest.mark.slow
def test_a_killed_run_ends_with_its_hours_and_is_then_complete(trained, tmp_path):
    """The machine determines how many steps it takes, but not the rate of the last."""
    changes = {
        "phases[0].num_steps": 1_000_000,
        "optimizer.schedule": "wsd",
        "budget_hours": 0.01,
        "checkpoint.every_steps": 10,
        "checkpoint.keep": 10_000,
    }
    arguments = [*small_run(trained, **changes), f"--workdir={tmp_path}"]
    run_until(tmp_path / "checkpoints" / "10", "bert_jax.train", *arguments)
    written = writer.read(str(tmp_path))
    repeated = {"step": 999_999, "seconds_steps": written[-1]["seconds_steps"] + 5.0}
    written.append(written[-1] | repeated)
    text = "".join(json.dumps(line) + "\n" for line in written)
    (tmp_path / "metrics.jsonl").write_text(text)
    run_well("bert_jax.train", *arguments)
    *_, resumed = (x for x in lines(tmp_path) if not x.keys() & {"loss", "eval_loss"})
    assert resumed["seconds_lost"] >= 5.0  # before the first step
    log = [line for line in lines(tmp_path) if "loss" in line]
    steps = [line["step"] for line in log]
    assert steps[0] == 10 and 1 <= min(np.diff(steps)) <= max(np.diff(steps)) <= 10
    assert log[0]["learning_rate"] == pytest.approx(2e-3)
    assert log[-1]["learning_rate"] == 0.0
    assert steps[-1] == max(integrity.steps(str(tmp_path))) < 1_000_000
    stdout = run_well("bert_jax.train", *arguments)
    assert "already complete" in stdout and f"Trained to step {steps[-1]:,}" in stdout
    assert "exceeded" not in stdout
