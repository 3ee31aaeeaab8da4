"""The log lines of a run: means over steps, read late so that no device waits."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np


class StepLog:
    """Turns the metrics of steps into log lines, without making the device wait.

    A line is the mean over the steps since the last one, of those that were finite. It
    is read from the device when the next step is under way, one step late.
    """

    def __init__(
        self,
        log_every_steps: int,
        rates: Callable[[int, float], dict[str, float]],
        on_line: Callable[[int, dict[str, float]], None],
        on_steps: Callable[[int, Sequence[dict[str, Any]]], None],
        first_step: int = 0,
        phase_index: int = 0,
    ):
        """Prepares for the first step, or for the one after `first_step`.

        Args:
          log_every_steps: steps of a line.
          rates: makes the part of a line that tells of speed, given a phase and its
            steps a second; a line of which no step was timed goes without.
          on_line: takes each line and its step.
          on_steps: takes the number of the last step and the metrics of all steps of a
            line, before the line is written; `add` and `flush` raise what it raises.
          first_step: steps that are done.
          phase_index: the phase of the last of them.
        """
        self._log_every_steps, self._rates = log_every_steps, rates
        self._on_line, self._on_steps = on_line, on_steps
        self._pending: list[dict[str, jax.Array]] = []  # on the devices
        self._fetched: list[dict[str, Any]] = []
        self._step = first_step
        self._phase_index = phase_index
        self._clock: float | None = None  # None: the time since is not only steps
        self._timed_steps = 0

    @property
    def is_full(self) -> bool:
        """Returns whether the steps since the last line make a line."""
        return self._step % self._log_every_steps == 0

    def add(self, step: int, phase_index: int, metrics: dict[str, jax.Array]) -> None:
        """Takes the metrics of the step that brought the count to `step`."""
        is_new_phase = phase_index != self._phase_index
        if self.is_full or is_new_phase:
            self.flush()
        if self._clock is None or is_new_phase:
            # Not a step's time: it holds compilation, or an evaluation.
            jax.block_until_ready(metrics)
            self._clock, self._timed_steps = time.perf_counter(), 0
        else:
            self._timed_steps += 1
        self._pending.append(metrics)
        self._step, self._phase_index = step, phase_index

    def flush(self) -> None:
        """Writes a line for the steps since the last one, if there are any."""
        self._fetch()
        if not self._fetched:
            return
        line = _mean(self._fetched)
        if self._clock is not None and self._timed_steps:
            seconds = time.perf_counter() - self._clock
            line |= self._rates(self._phase_index, self._timed_steps / seconds)
        self._fetched = []
        self._clock, self._timed_steps = time.perf_counter(), 0
        self._on_line(self._step, line)

    def _fetch(self) -> None:
        if self._pending:
            fetched, self._pending = jax.device_get(self._pending), []
            self._on_steps(self._step, fetched)
            self._fetched += fetched

    def stop_clock(self) -> None:
        """Says that what follows is not training: the next step restarts the clock."""
        self._clock = None


def _mean(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the mean of each metric over the finite steps, or over all if none is."""
    good = [metrics for metrics in steps if not metrics["bad_steps_in_row"]]
    line = {
        # As Python's numbers, which they are when they come out of a checkpoint.
        name: float(np.mean([float(metrics[name]) for metrics in good or steps]))
        for name in steps[0]
    }
    del line["bad_steps_in_row"]
    line["learning_rate"] = float(steps[-1]["learning_rate"])
    return line | {"bad_steps": float(len(steps) - len(good))}
