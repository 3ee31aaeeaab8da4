"""Evaluates and saves the state of a run between its steps, and ranks its checkpoints.

Checkpoints are ranked by held-out loss within each phase. Losses of phases that differ
in row length or batch size are not comparable, nor those of evaluations with different
settings: config.eval may change when a run resumes. They come from the evaluations in
metrics.jsonl, so a checkpoint that was saved at an interruption just before its
evaluation has a loss as well.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from orbax.checkpoint import checkpoint_managers

from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig, ExperimentConfig
from bert_jax.distributed import multihost, stopping
from bert_jax.errors import DivergedError, Interrupted
from bert_jax.monitoring import terminal, writer
from bert_jax.monitoring.monitor import Monitor
from bert_jax.monitoring.writer import HELD_OUT_LOSS, HELD_OUT_SETTINGS
from bert_jax.phases import Position, phase_of
from bert_jax.training import rollbacks
from bert_jax.training.budget import Budget
from bert_jax.training.evaluation import HeldOut
from bert_jax.training.step import TrainState


class Ranking:
    """The held-out losses of a run by step; an Orbax preservation policy."""

    def __init__(self, num_best: int):
        """Creates a ranking that preserves `num_best` checkpoints of each phase."""
        self._num_best = num_best
        # By step: what must be equal to compare losses, and the loss.
        self._losses: dict[int, tuple[tuple[Any, ...], float]] = {}

    def add(self, step: int, phase_index: int, line: Mapping[str, Any]) -> None:
        """Records the held-out line of `step`, a step of the given phase."""
        loss = line[HELD_OUT_LOSS]  # null in metrics.jsonl if it was not finite
        if loss is None or not math.isfinite(loss):
            loss = math.inf
        settings = (line.get(f"eval_{name}") for name in HELD_OUT_SETTINGS)
        self._losses[step] = (phase_index, *settings), loss

    def drop_after(self, step: int) -> None:
        """Drops the evaluations after `step`, which a rollback undid."""
        self._losses = {s: loss for s, loss in self._losses.items() if s <= step}

    def is_best(self, step: int, saved: Collection[int]) -> bool:
        """Returns whether a checkpoint of `step` would be preserved."""
        return step in self._best({*saved, step})

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> Sequence[bool]:
        """Returns whether each checkpoint is preserved; called by Orbax."""
        del context
        best = self._best({checkpoint.step for checkpoint in checkpoints})
        return [checkpoint.step in best for checkpoint in checkpoints]

    def _best(self, steps: Collection[int]) -> set[int]:
        groups: dict[tuple[Any, ...], list[tuple[float, int]]] = {}
        for step in steps:
            if step in self._losses:
                group, loss = self._losses[step]
                groups.setdefault(group, []).append((loss, step))
        ranked = (sorted(group)[: self._num_best] for group in groups.values())
        return {step for group in ranked for _, step in group}


def preservation(
    config: CheckpointConfig, ranking: Ranking
) -> checkpoint_managers.PreservationPolicy:
    """Returns the policy that keeps the checkpoints of the config and the ranking."""
    policies: list[Any] = [checkpoint_managers.LatestN(config.keep), ranking]
    if config.keep_steps:
        policies.append(checkpoint_managers.CustomSteps(config.keep_steps))
    if config.keep_every_steps:
        policies.append(checkpoint_managers.EveryNSteps(config.keep_every_steps))
    return checkpoint_managers.AnyPreservationPolicy(policies)


def read_ranking(workdir: str, config: ExperimentConfig, last_step: int) -> Ranking:
    """Returns the ranking of a run's evaluations up to `last_step`.

    All processes call this together, and all get the same losses.
    """

    def read_lines() -> list[dict[str, Any]]:
        lines = [line for line in writer.read(workdir) if HELD_OUT_LOSS in line]
        return [line for line in lines if line["step"] <= last_step]

    ranking = Ranking(config.checkpoint.keep_best)
    for line in multihost.agree("held-out losses", read_lines):
        phase_index, _ = phase_of(config, line["step"] - 1)
        ranking.add(line["step"], phase_index, line)
    return ranking


@dataclasses.dataclass(frozen=True)
class Saver:
    """The evaluations and checkpoints of a run, and the plan of its end."""

    config: ExperimentConfig
    checkpoints: Checkpoints
    ranking: Ranking
    held_out: HeldOut
    budget: Budget
    monitor: Monitor

    @property
    def workdir(self) -> str:
        return self.checkpoints.workdir

    def check(self, step: int) -> None:
        """Raises the error of a save, and plans anew; see `Budget.update`."""
        self.checkpoints.check_for_errors()
        if self.config.budget_hours:
            seconds = self.monitor.seconds_of_steps()
            self.budget.update(step, seconds, self.checkpoints.seconds_to_save)
            self.monitor.progress.num_steps = self.budget.last_step

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
        self.monitor.log(step, line, f"held out: {terminal.format_held_out(line)}")
        if not self.config.checkpoint.keep_best:
            return False
        is_best = self.ranking.is_best(step, self.checkpoints.steps())
        return multihost.from_process_0(is_best)

    def evaluate_if_missing(self, step: int, state: TrainState) -> None:
        """Evaluates a resumed state whose evaluation is due but not logged."""
        if not step or not self._is_evaluation_due(step):
            return
        lines = writer.read(self.workdir)
        is_done = any(x["step"] == step and HELD_OUT_LOSS in x for x in lines)
        if not multihost.from_process_0(is_done):
            self.evaluate_if_due(step, state)

    def _is_evaluation_due(self, step: int) -> bool:
        return self.held_out.exists and self._is_due(step, self.config.eval.every_steps)

    def _is_due(self, step: int, every_steps: int) -> bool:
        # The evaluation and the save at the start of the decay also measure how long
        # those at the end will take.
        is_last = step == self.budget.last_step
        return is_last or step % every_steps == 0 or self.budget.starts_decay(step)

    # ------------------------------------------------------------------------ saves

    def is_time_to_save(self, step: int) -> bool:
        """Returns whether the state after `step` steps is saved, in all processes.

        every_minutes is checked only at log lines, because all processes have to agree.
        """
        checkpoint = self.config.checkpoint
        if step in checkpoint.keep_steps or self._is_due(step, checkpoint.every_steps):
            return True
        if not checkpoint.every_minutes or step % self.config.log_every_steps:
            return False
        minutes = (time.monotonic() - self.checkpoints.saved_at) / 60
        return multihost.from_process_0(minutes >= checkpoint.every_minutes)

    def save(self, step: int, state: TrainState, position: Position) -> None:
        """Writes the log lines so far, and starts to save a state that is finite."""
        self.monitor.flush()  # raises if the steps since the last line diverged
        rollbacks.check_finite(step, state)
        plan = self.budget.saved
        with self.budget.timing("save"):
            self.wait()
            with self.monitor.activity("saving"):
                self.checkpoints.save(step, state, self.config, position, plan)

    def interrupt(self, step: int, state: TrainState, position: Position) -> NoReturn:
        """Saves the state, of which there may be only seconds left, and raises."""
        self.save(step, state, position)
        self.wait()  # raises if the save failed
        if self.config.budget_hours:
            self.monitor.write(step, {})  # the time until now counts
        raise Interrupted(f"step {step:,} is saved in {self.workdir}")

    def wait(self) -> None:
        with self.monitor.activity("saving"):
            self.checkpoints.wait()

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
            reason = rollbacks.diagnose(state().params, self.workdir, error.step)
            error.args = (f"{error}; {reason}",)
            raise
        except Exception as error:
            # A save cannot complete if another process is lost.
            if not stopping.may_be_lost_peer(error):
                with contextlib.suppress(Exception):  # report the first error
                    self.wait()
            raise
        self.wait()
