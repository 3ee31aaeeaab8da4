"""Evaluates and saves the state of a run between its steps."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import NoReturn

from bert_jax.checkpoint import best
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.distributed import multihost, stopping
from bert_jax.errors import DivergedError, Interrupted
from bert_jax.monitoring import report, writer
from bert_jax.monitoring.monitor import Monitor
from bert_jax.phases import Position, phase_of
from bert_jax.training import nonfinite
from bert_jax.training.budget import Budget
from bert_jax.training.evaluation import HeldOut
from bert_jax.training.step import TrainState


@dataclasses.dataclass(frozen=True)
class Saver:
    """The evaluations and checkpoints of a run, and the plan of its end."""

    config: ExperimentConfig
    checkpoints: Checkpoints
    ranking: best.Ranking
    held_out: HeldOut
    budget: Budget
    monitor: Monitor

    @property
    def workdir(self) -> str:
        return self.checkpoints.workdir

    def check(self, step: int) -> None:
        """Raises the error of a save, and plans the rest of a run with a budget.

        Call it after every step, before `evaluate` and `save`.
        """
        self.checkpoints.check_for_errors()
        if self.config.budget_hours:
            seconds = self.monitor.seconds_of_steps()
            self.budget.update(step, seconds, self.checkpoints.seconds_to_save)
            self.monitor.set_last_step(self.budget.last_step)

    # ------------------------------------------------------------------ evaluations

    def evaluate_if_due(self, step: int, state: TrainState) -> bool:
        """Evaluates a state if that is due; returns whether keep_best preserves it."""
        if not self._is_evaluation_due(step):
            return False
        self.monitor.flush()  # steps so far: their rate excludes the evaluation
        phase_index, _ = phase_of(self.config, step - 1)
        with self.monitor.activity("evaluating"), self.budget.timing("evaluation"):
            line = self.held_out.evaluate(state, phase_index)
        self.ranking.add(step, phase_index, line)
        self.monitor.log(step, line, f"held out: {report.format_held_out(line)}")
        if not self.config.checkpoint.keep_best:
            return False
        return multihost.from_process_0(
            self.ranking.is_best(step, self.checkpoints.steps())
        )

    def evaluate_if_missing(self, step: int, state: TrainState) -> None:
        """Evaluates a resumed state whose evaluation is due but not logged."""
        if not step or not self._is_evaluation_due(step):
            return
        lines = writer.read(self.workdir)
        is_done = any(x["step"] == step and writer.HELD_OUT_LOSS in x for x in lines)
        if not multihost.from_process_0(is_done):
            self.evaluate_if_due(step, state)

    def _is_evaluation_due(self, step: int) -> bool:
        # The evaluation and the save at the start of the decay also measure how long
        # those at the end will take.
        is_due = self.held_out.is_due(step, self.budget.last_step)
        return is_due or (self.held_out.exists and self.budget.starts_decay(step))

    # ------------------------------------------------------------------------ saves

    def is_time_to_save(self, step: int) -> bool:
        """Returns whether the state after `step` steps is saved, in all processes.

        every_minutes is checked only at log lines, because all processes have to agree.
        """
        checkpoint = self.config.checkpoint
        is_last = step == self.budget.last_step
        is_regular = step % checkpoint.every_steps == 0
        if is_last or is_regular or self.budget.starts_decay(step):
            return True
        if not checkpoint.every_minutes or step % self.config.log_every_steps:
            return False
        minutes = self.checkpoints.seconds_since_save() / 60
        return multihost.from_process_0(minutes >= checkpoint.every_minutes)

    def save(self, step: int, state: TrainState, position: Position) -> None:
        """Writes the log lines so far, and starts to save a state that is finite."""
        self.monitor.flush()  # raises if the steps since the last line diverged
        nonfinite.check_finite(step, state)
        with self.budget.timing("save"):
            self.wait()
            with self.monitor.activity("saving"):
                self.checkpoints.save(
                    step, state, self.config, position, self.budget.saved
                )

    def interrupt(self, step: int, state: TrainState, position: Position) -> NoReturn:
        """Saves the state, of which there may be only seconds left, and raises."""
        self.save(step, state, position)
        self.wait()  # raises if the save failed
        self.budget.record()
        raise Interrupted(f"step {step:,} is saved in {self.workdir}")

    def wait(self) -> None:
        """Waits for the save in progress; trackers record the newest checkpoint."""
        with self.monitor.activity("saving"):
            self.checkpoints.wait()
        for step in self.checkpoints.steps()[-1:]:
            self.monitor.checkpoint(f"{self.checkpoints.directory}/{step}")

    @contextlib.contextmanager
    def finishing_saves(self, state: Callable[[], TrainState]) -> Iterator[None]:
        """Waits for the save in progress, also after an error if it can complete.

        The parameters of the state that `state` returns explain a divergence.
        """
        try:
            yield
        except DivergedError as error:
            # Otherwise, the time since the last line counts as not running.
            self.monitor.write(error.step, {})
            reason = nonfinite.diagnose(state().params, self.workdir, error.step)
            raise error.because(reason) from None
        except Exception as error:
            # A save cannot complete if another process is lost.
            if not stopping.may_be_lost_peer(error):
                with contextlib.suppress(Exception):  # report the first error
                    self.wait()
            raise
        self.wait()
