"""Ends a run, and the decay of its learning rate, with its hours (config.budget_hours).

The rate is constant until a fifth of the hours is left, and then decays to 0 at the
last step. The two steps are a plan, which every checkpoint holds. At log lines, process
0 makes a new plan from the time that is left and the time that steps, evaluations and
saves have taken, and all processes adopt it. A new plan continues the decay at its
progress, so the rate has no jumps.

The time is that of all calls of `train`, from the import of bert_jax to the end. It is
recorded in the workdir between steps, see RECORD_SHARE; a kill loses the rest.
"""

import bisect
import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax import small_files, storage
from bert_jax.config import ExperimentConfig
from bert_jax.distributed import multihost
from bert_jax.errors import CorruptError
from bert_jax.training import optimizer

RECORD_FILE = "budget.json"
# The share of the time, or of the steps if they end first, in which the rate decays:
# 20% in Haegele et al. 2024 (arXiv:2405.18392), section 3.
DECAY_SHARE = 0.2
# The least number of steps of a decay, so that the rate decays even if a kill has used
# up the time.
MIN_STEPS = 20
EXIT_SECS = 0.5  # from the summary to the end of the process
# The interval of records is the larger one. Steps wait for a record in a bucket.
RECORD_SHARE, RECORD_SECS, BUCKET_RECORD_SECS = 0.001, 1.0, 10.0
# The weight of the newest log line in the estimate of a step's time.
NEWEST = 0.5


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where the decay of a run starts or continues, and where it ends.

    Attributes:
      step: number of steps before the decay, or before this plan of the rest of it.
      progress: progress of the decay after these steps, from 0 to 1.
      last_step: number of steps of the whole run.
    """

    step: int
    progress: float
    last_step: int

    def progress_at(self, step: int) -> float:
        """Returns the progress of the decay after `step` steps."""
        done = (step - self.step) / max(self.last_step - self.step, 1)
        return self.progress + (1.0 - self.progress) * min(max(done, 0.0), 1.0)


@dataclasses.dataclass
class Costs:
    """The latest seconds of parts of a run.

    Attributes:
      step: a step, without evaluations and saves.
      evaluation: an evaluation.
      save: a save, as far as steps wait for it.
      last_save: a save until it is complete, and its verification.
      summary: the plot and the summary at the end.
    """

    step: float = 0.0
    evaluation: float = 0.0
    save: float = 0.0
    last_save: float = 0.0
    summary: float = 0.0


def first_plan(config: ExperimentConfig) -> Plan:
    """Returns the plan for a run that takes config.num_steps before its hours end."""
    num_steps = config.num_steps
    return Plan(num_steps - round(DECAY_SHARE * num_steps), 0.0, num_steps)


def new_plan(
    plan: Plan, step: int, config: ExperimentConfig, costs: Costs, seconds_left: float
) -> Plan:
    """Returns the plan after `step` steps for the time that is left.

    Args:
      plan: the plan so far.
      step: number of steps taken; their evaluation and save are not done yet.
      config: the config of the run.
      costs: the expected costs.
      seconds_left: rest of the time of config.budget_hours.
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

    ending = costs.evaluation + costs.last_save + costs.summary + EXIT_SECS
    left = seconds_left - ending
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
        saved: Mapping[str, Any] | None,
        began: float,
    ):
        """Continues the plan and the time of earlier calls; all processes call it.

        It writes nothing: the first `record` does.

        Args:
          config: the config of the run.
          workdir: its workdir; process 0 records the running time there.
          saved: `saved` of the checkpoint to resume from, None in a new run.
          began: start of this process, in seconds since 1970.

        Raises:
          CorruptError: when the record of the running time is corrupt.
        """
        self._config = config
        self._path = os.path.join(workdir, RECORD_FILE)
        self._costs = Costs()
        self._rehearsed: set[int] = set()
        self.plan: Plan | None = None
        if config.budget_hours:
            self.resume(saved)
            record = json.loads(multihost.agree("budget", self._read))
            self._costs.last_save = record["last_save"]
            since = time.time() - began
            self._zero = time.perf_counter() - since - record["seconds"]
            self._recorded_at = -math.inf

    def resume(self, saved: Mapping[str, Any] | None) -> None:
        """Continues the plan of a checkpoint, None for that of a new run."""
        if self._config.budget_hours:
            self.plan = Plan(**saved) if saved else first_plan(self._config)

    @property
    def last_step(self) -> int:
        """The last step of the run, according to the current plan."""
        return self.plan.last_step if self.plan else self._config.num_steps

    @property
    def saved(self) -> dict[str, Any] | None:
        """The plan, to be saved in a checkpoint; None without a budget."""
        return dataclasses.asdict(self.plan) if self.plan else None

    def arguments(self, step: int) -> tuple[np.ndarray, ...]:
        """Returns the arguments of step number `step` besides the state and the batch.

        Returns:
          (float32[],), the factor of the learning rate; () without a budget.
        """
        if self.plan is None:
            return ()
        factor = optimizer.decay_factor(self.plan.progress_at(step))
        return (np.asarray(factor, np.float32),)

    def starts_decay(self, step: int) -> bool:
        """Returns whether the rate decays from the step after `step` on."""
        return self.plan is not None and (step, 0.0) == (
            self.plan.step,
            self.plan.progress,
        )

    def needs_rehearsal(self, phase_index: int) -> bool:
        """Returns whether to call `rehearse`, once in each phase."""
        return self.plan is not None and phase_index not in self._rehearsed

    def rehearse(self, phase_index: int, **parts: Callable[[], Any]) -> None:
        """Times the parts of a run's end that it has not reached yet.

        Args:
          phase_index: the current phase.
          **parts: functions by their cost. They are called twice, because a first call
            includes compilation.
        """
        self._rehearsed.add(phase_index)
        for name, part in 2 * list(parts.items()):
            with self.timing(name):
                part()

    @contextlib.contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Measures one of the costs."""
        start = time.perf_counter()
        yield
        setattr(self._costs, name, time.perf_counter() - start)
        self.record()

    def record(self, is_last: bool = False) -> None:
        """Records the running time if the last record is too old, or in any case.

        Args:
          is_last: whether this process ends.
        """
        if self.plan is None or not multihost.is_first():
            return
        least = BUCKET_RECORD_SECS if storage.is_remote(self._path) else RECORD_SECS
        interval = max(least, RECORD_SHARE * 3600 * self._config.budget_hours)
        now = time.perf_counter()
        if is_last or now - self._recorded_at >= interval:
            self._recorded_at = now
            record = {"seconds": self._used(), "last_save": self._costs.last_save}
            storage.write(self._path, (json.dumps(record) + "\n").encode())

    def start_timing(self, first_step: int, seconds: float) -> None:
        """Starts to time steps; see `replan` for the arguments."""
        self._timed_from = first_step, seconds

    def replan(self, step: int, seconds: float, last_save: float) -> None:
        """Makes a new plan, unless the run ends after this step.

        All processes call it after the same step, before they evaluate or save, so that
        a checkpoint holds the plan with which the run continues.

        Args:
          step: number of steps taken.
          seconds: total time of the steps of this call, without evaluations and saves.
          last_save: seconds of the last save and its verification; 0 if there was none.
        """
        if self.plan is None or step == self.plan.last_step:
            return
        costs, (first_step, before) = self._costs, self._timed_from
        newest = (seconds - before) / (step - first_step)
        costs.step += (NEWEST if costs.step else 1.0) * (newest - costs.step)
        costs.last_save = last_save or costs.last_save
        self._timed_from = step, seconds
        left = 3600 * self._config.budget_hours - self._used()
        plan = new_plan(self.plan, step, self._config, costs, left)
        self.plan = Plan(*multihost.from_process_0(dataclasses.astuple(plan)))

    def _used(self) -> float:
        return time.perf_counter() - self._zero

    def _read(self) -> str:
        if not storage.exists(self._path):
            return json.dumps({"seconds": 0.0, "last_save": 0.0})
        remedy = "remove it to count the running time from now on"
        found = small_files.read_json(self._path, remedy)
        record = {name: found.get(name, 0.0) for name in ("seconds", "last_save")}
        if not all(isinstance(seconds, int | float) for seconds in record.values()):
            raise CorruptError(f"{self._path} has no number of seconds; {remedy}")
        return json.dumps(record)
