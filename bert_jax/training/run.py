"""A pretraining run: its log, evaluations and saves, for the loop in train.py."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bert_jax.checkpoint import best
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.distributed import multihost
from bert_jax.errors import DivergedError
from bert_jax.monitoring import report, throughput, writer
from bert_jax.monitoring.monitor import Monitor
from bert_jax.monitoring.profile import Profiler
from bert_jax.phases import Position, phase_of
from bert_jax.training import nonfinite, overview
from bert_jax.training.budget import Budget
from bert_jax.training.compilation import CompiledSteps
from bert_jax.training.evaluation import HeldOut
from bert_jax.training.replay import Replay
from bert_jax.training.step import TrainState


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a run, and what happens between its steps.

    Attributes:
      began: start of the process, in seconds since 1970.
    """

    config: ExperimentConfig
    workdir: str
    mesh: jax.sharding.Mesh
    corpus: Corpus
    checkpoints: Checkpoints
    ranking: best.Ranking
    budget: Budget
    compiled: CompiledSteps
    replay: Replay
    held_out: HeldOut
    monitor: Monitor
    began: float

    def open_log(self, first_step: int, position: Position, started: float) -> None:
        """Opens the log of the steps after `first_step`."""
        config = self.config
        guard = nonfinite.Guard(
            config,
            self.corpus,
            position,
            first_step,
            self.workdir if multihost.is_first() else None,
            self.monitor.print,
        )
        self.monitor.open_log(
            self.workdir,
            first_step,
            config.num_steps,
            config.log_every_steps,
            phase_of(config, max(first_step - 1, 0))[0],
            throughput.Throughput(config),
            report.format_steps,
            guard.check,
            started,
        )

    def open_profiler(self, first_step: int) -> Profiler:
        """Opens config.profile in process 0, which traces its own devices."""
        steps = self.config.profile if multihost.is_first() else ()
        return Profiler(steps, self.workdir, first_step, self.monitor)

    def compiled_step(self, phase_index: int) -> Callable[..., Any]:
        """Returns the compiled step of a phase; waits for its compilation."""
        if self.compiled.is_ready(phase_index):
            return self.compiled.get(phase_index)
        with self.monitor.activity("compiling"):
            return self.compiled.get(phase_index)

    def replan(self, step: int) -> None:
        """Plans the rest of a run with config.budget_hours, at log lines."""
        if step % self.config.log_every_steps:
            return
        seconds = self.monitor.seconds_of_steps()
        self.budget.replan(step, seconds, self.checkpoints.seconds_to_save)
        self.monitor.set_last_step(self.budget.last_step)

    def evaluate(self, step: int, phase_index: int, state: TrainState) -> bool:
        """Logs the held-out metrics; returns whether keep_best preserves this state."""
        self.monitor.flush()  # steps so far: their rate excludes the evaluation
        with self.monitor.activity("evaluating"), self.budget.timing("evaluation"):
            line = self.held_out.evaluate(state, phase_index)
        self.ranking.add(step, phase_index, line)
        self.monitor.log(step, line, f"held out: {report.format_held_out(line)}")
        if not self.config.checkpoint.keep_best:
            return False
        return multihost.from_process_0(
            self.ranking.is_best(step, self.checkpoints.steps())
        )

    def evaluate_if_missing(self, state: TrainState, step: int) -> None:
        """Evaluates a resumed state whose evaluation is due but not logged."""
        if not step or not self.held_out.is_due(step, self.budget.last_step):
            return
        lines = writer.read(self.workdir)
        is_done = any(x["step"] == step and writer.HELD_OUT_LOSS in x for x in lines)
        if not multihost.from_process_0(is_done):
            self.evaluate(step, phase_of(self.config, step - 1)[0], state)

    def is_time_to_save(self, step: int) -> bool:
        """Returns whether the state after `step` steps is saved, in all processes.

        every_minutes is checked only at log lines, because all processes have to agree.
        """
        checkpoint = self.config.checkpoint
        if step % checkpoint.every_steps == 0 or self.budget.starts_decay(step):
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
            self.wait_for_save()
            with self.monitor.activity("saving"):
                self.checkpoints.save(
                    step, state, self.config, position, self.budget.saved
                )

    def wait_for_save(self) -> None:
        """Waits for the save in progress; trackers record the newest checkpoint."""
        with self.monitor.activity("saving"):
            self.checkpoints.wait()
        for step in self.checkpoints.steps()[-1:]:
            self.monitor.checkpoint(f"{self.checkpoints.directory}/{step}")

    @contextlib.contextmanager
    def finishing_saves(self) -> Iterator[None]:
        """Waits for the save in progress, also after an error if it can complete."""
        try:
            yield
        except DivergedError:
            raise
        except Exception as error:
            # A save cannot complete if another process is lost.
            if not multihost.may_be_lost_peer(error):
                with contextlib.suppress(Exception):  # report the first error
                    self.wait_for_save()
            raise
        self.wait_for_save()

    def rehearse_end(self, state: TrainState, phase_index: int) -> None:
        """Measures how long the end of the run takes, for a plan that ends in time."""
        held_out, is_first = self.held_out, multihost.is_first()
        with self.monitor.activity("evaluating"):
            self.budget.rehearse(
                phase_index,
                evaluation=lambda: (
                    held_out.exists and held_out.evaluate(state, phase_index)
                ),
                summary=lambda: (
                    is_first and overview.summarize(self.workdir, 0, 0, held_out)
                ),
            )
