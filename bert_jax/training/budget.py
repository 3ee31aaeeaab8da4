"""Ends a run, and the decay of its learning rate, with its hours (config.budget_hours).

The rate is constant until a fifth of the hours is left, and then decays to 0 at the
last step. The two steps are a plan, which every checkpoint holds. At log lines, process
0 makes a new plan from the time that is left and the time that steps, evaluations and
saves have taken, and all processes adopt it. A new plan continues the decay at its
progress, so the rate has no jumps.

The time is that of all calls of `train`, from the import of bert_jax to the end, as the
lines of metrics.jsonl account for it; a kill loses the time since the last line.
"""

import bisect
import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax import clock
from bert_jax.config import ExperimentConfig
from bert_jax.distributed import multihost
from bert_jax.monitoring import goodput, writer
from bert_jax.training import optimizer

# The share of the time, or of the steps if they end first, in which the rate decays:
# 20% in Haegele et al. 2024 (arXiv:2405.18392), section 3.
DECAY_SHARE = 0.2
# The least number of steps of a decay, so that the rate decays even if a kill has used
# up the time.
MIN_STEPS = 20
SUMMARY_SECS = 3.0  # the plot, the summary and the exit
# The weight of the newest log line in the estimate of a step's time.
NEWEST = 0.5


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where the decay of a run starts or continues, and where it ends."""

    step: int  # steps before the decay, or before this plan of the rest of it
    progress: float  # of the decay after these steps, from 0 to 1
    last_step: int  # number of steps of the whole run

    def progress_at(self, step: int) -> float:
        done = (step - self.step) / max(self.last_step - self.step, 1)
        return self.progress + (1.0 - self.progress) * min(max(done, 0.0), 1.0)


@dataclasses.dataclass
class Costs:
    """The latest seconds of parts of a run, 0 before the first."""

    step: float = 0.0  # without evaluations and saves
    evaluation: float = 0.0
    save: float = 0.0  # as far as steps wait for it
    last_save: float = 0.0  # until it is complete, and its verification


def first_plan(config: ExperimentConfig, first_step: int = 0) -> Plan:
    """Returns the plan for a run that takes config.num_steps before its hours end.

    A branch takes the steps after `first_step`, where the rate is still constant.
    """
    num_steps = config.num_steps
    decay_start = num_steps - round(DECAY_SHARE * num_steps)
    return Plan(max(decay_start, first_step), 0.0, num_steps)


def new_plan(
    plan: Plan, step: int, config: ExperimentConfig, costs: Costs, seconds_left: float
) -> Plan:
    """Returns the plan after `step` steps for the time that is left.

    The evaluation and the save after these steps are not done yet.
    """
    between = (
        (config.eval.every_steps, costs.evaluation),
        (config.checkpoint.every_steps, costs.save),
    )

    def seconds(num_steps: int) -> float:
        """Returns the time of the next steps and of the work between them."""
        before_last = step + max(num_steps - 1, 0)
        times = ((before_last // n - (step - 1) // n) * secs for n, secs in between)
        return num_steps * costs.step + sum(times)

    def steps_in(limit: float) -> int:
        steps = range(config.num_steps - step + 1)
        return max(bisect.bisect_right(steps, limit, key=seconds) - 1, 0)

    left = seconds_left - costs.evaluation - costs.last_save - SUMMARY_SECS
    least = math.ceil(MIN_STEPS * (1.0 - plan.progress_at(step)))
    num_steps = max(steps_in(left), min(least, plan.last_step - step))
    last_step = min(step + num_steps, config.num_steps)
    if step >= plan.step:
        return Plan(step, plan.progress_at(step), last_step)
    stable = steps_in(left - DECAY_SHARE * 3600 * config.budget_hours)
    return Plan(min(step + stable, first_plan(config).step), 0.0, last_step)


class Budget:
    """The plan of a run and its running time; without a budget, neither."""

    def __init__(
        self,
        config: ExperimentConfig,
        workdir: str,
        first_step: int,
        saved: Mapping[str, Any] | None,
        began: float,
    ):
        """Continues the plan and the time of earlier calls; all processes call it.

        `saved` is that of the checkpoint to resume from, None in a new run, which
        begins after `first_step`; `began` is `clock()` at the process's start.
        """
        self._config = config
        self._costs = Costs()
        self._timed_from: tuple[int, float] | None = None  # a step and its time
        self.plan: Plan | None = None
        if config.budget_hours:
            self.resume(first_step, saved)
            used = multihost.agree(
                "budget", lambda: goodput.running_seconds(writer.read(workdir))
            )
            self._zero = began - used

    def resume(self, first_step: int, saved: Mapping[str, Any] | None) -> None:
        """Continues the plan of a checkpoint, None for that of a new run."""
        self._timed_from = None
        if self._config.budget_hours:
            self.plan = Plan(**saved) if saved else first_plan(self._config, first_step)

    @property
    def last_step(self) -> int:
        """The last step of the run, according to the current plan."""
        return self.plan.last_step if self.plan else self._config.num_steps

    @property
    def saved(self) -> dict[str, Any] | None:
        """The plan, to be saved in a checkpoint; None without a budget."""
        return dataclasses.asdict(self.plan) if self.plan else None

    def arguments(self, step: int) -> tuple[np.ndarray, ...]:
        """Returns (factor of the learning rate, float32[],); () without a budget."""
        if self.plan is None:
            return ()
        factor = optimizer.decay_factor(self.plan.progress_at(step))
        return (np.asarray(factor, np.float32),)

    def starts_decay(self, step: int) -> bool:
        """Returns whether the rate decays from the step after `step` on."""
        plan = self.plan
        return plan is not None and (plan.step, plan.progress) == (step, 0.0)

    @contextlib.contextmanager
    def timing(self, name: str) -> Iterator[None]:
        start = clock()
        yield
        setattr(self._costs, name, clock() - start)

    def update(self, step: int, seconds: float, last_save: float) -> None:
        """Computes a new plan at every `log_every_steps` steps.

        All processes call it after each step, before they evaluate or save, so that a
        checkpoint holds the plan with which the run continues. `seconds` is the time of
        all steps of this call, and `last_save` that of a save and its verification.
        """
        if self.plan is None:
            return
        if self._timed_from is None:
            self._timed_from = step, seconds
        elif step % self._config.log_every_steps == 0 and step < self.plan.last_step:
            first_step, before = self._timed_from
            newest, costs = (seconds - before) / (step - first_step), self._costs
            costs.step += (NEWEST if costs.step else 1.0) * (newest - costs.step)
            costs.last_save = last_save
            self._timed_from = step, seconds
            left = 3600 * self._config.budget_hours - self._used()
            plan = new_plan(self.plan, step, self._config, costs, left)
            self.plan = Plan(*multihost.from_process_0(dataclasses.astuple(plan)))

    def excess(self) -> float:
        """Returns the seconds by which the steps of this call ended too late."""
        if self.plan is None or self._timed_from is None:
            return 0.0
        return max(self._used() - 3600 * self._config.budget_hours, 0.0)

    def _used(self) -> float:
        return clock() - self._zero
