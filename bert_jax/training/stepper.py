"""Takes the steps of a run: compiles them, reads their batches, replays some."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.distributed import multihost
from bert_jax.monitoring import report, throughput
from bert_jax.monitoring.monitor import Metrics, Monitor
from bert_jax.monitoring.profile import Profiler
from bert_jax.phases import Position, phase_of
from bert_jax.training import nonfinite
from bert_jax.training.compilation import CompiledSteps
from bert_jax.training.input import training_batches
from bert_jax.training.replay import Replay
from bert_jax.training.step import Batch, TrainState


@dataclasses.dataclass(frozen=True)
class Stepper:
    """The batches of a run and its compiled step."""

    config: ExperimentConfig
    corpus: Corpus
    mesh: jax.sharding.Mesh
    compiled: CompiledSteps
    replay: Replay
    monitor: Monitor

    def open_log(
        self, workdir: str, first_step: int, position: Position, began: float
    ) -> None:
        """Opens the log of the steps after `first_step`; see `Monitor.open_log`."""
        config = self.config
        guard = nonfinite.Guard(
            config,
            self.corpus,
            position,
            first_step,
            workdir if multihost.is_first() else None,
            self.monitor.print,
        )
        self.monitor.open_log(
            workdir,
            first_step,
            config.num_steps,
            config.log_every_steps,
            phase_of(config, max(first_step - 1, 0))[0],
            throughput.Throughput(config),
            report.format_steps,
            guard.check,
            began,
        )

    def open_profiler(self, workdir: str, first_step: int) -> Profiler:
        """Opens config.profile in process 0, which traces its own devices."""
        steps = self.config.profile if multihost.is_first() else ()
        return Profiler(steps, workdir, first_step, self.monitor)

    def batches(
        self, first_step: int, position: Position
    ) -> Iterator[tuple[int, int, Batch]]:
        """Yields (step, phase, batch) for every step after `first_step`, timed."""
        batches = training_batches(
            self.corpus, self.config, self.mesh, first_step, position.skips
        )
        return self.monitor.timed(batches)

    def take(
        self,
        profiler: Profiler,
        step: int,
        phase_index: int,
        state: TrainState,
        *arguments: Any,
    ) -> tuple[TrainState, Metrics]:
        """Takes a step; replays it before if that is due.

        Args:
          step: number of steps taken, including this one.
          state: the state before the step; it is donated.
          arguments: the batch, and the factor of the rate with a budget.
        """
        if not self.compiled.is_ready(phase_index):
            with self.monitor.activity("compiling"):
                self.compiled.get(phase_index)
        if self.replay.is_due(step):
            with self.monitor.activity("replaying"):
                self.replay.check(step, state, *arguments)
        train_step = self.compiled.get(phase_index)
        return profiler.step(step, train_step, state, *arguments)
