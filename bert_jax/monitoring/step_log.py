"""Averages the metrics of steps into log lines without making devices wait."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np


class StepLog:
    """Turns the metrics of steps into log lines.

    A line is the mean over the finite steps since the last line. It is fetched from the
    device one step late, while the next step runs, so that the device does not wait.
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
        """Prepares for the step after `first_step`.

        Args:
          rates: (phase index, steps per second) -> throughput metrics of the line. A
            line without a timed step has none.
          on_line: called with (last step, metrics) for each line.
          on_steps: called with (last step, metrics of each step since the last line)
            before the line is written. `add` and `flush` pass on its exceptions.
          first_step: number of completed steps.
          phase_index: phase of the last completed step.
        """
        self._log_every_steps, self._rates = log_every_steps, rates
        self._on_line, self._on_steps = on_line, on_steps
        self._pending: list[dict[str, jax.Array]] = []  # on the devices
        self._fetched: list[dict[str, Any]] = []
        self._step = first_step
        self._phase_index = phase_index
        self._clock: float | None = None  # None while steps are not timed
        self._timed_steps = 0

    @property
    def is_full(self) -> bool:
        """Whether the steps since the last line complete a line."""
        return self._step % self._log_every_steps == 0

    def add(self, step: int, phase_index: int, metrics: dict[str, jax.Array]) -> None:
        """Adds the metrics of a step, after writing the line before it if one is due.

        Args:
          step: number of steps taken, including this one.
          metrics: scalars; they may still be computing.
        """
        is_new_phase = phase_index != self._phase_index
        if self.is_full or is_new_phase:
            self.flush()
        if self._clock is None or is_new_phase:
            # This step is not timed, because it includes compilation or an evaluation.
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
        """Stops timing until the next step is complete, for work between steps."""
        self._clock = None


def _mean(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the mean of each metric over the finite steps, or over all if none is."""
    good = [metrics for metrics in steps if not metrics["bad_steps_in_row"]]
    line = {
        name: float(np.mean([float(metrics[name]) for metrics in good or steps]))
        for name in steps[0]
    }
    del line["bad_steps_in_row"]
    line["learning_rate"] = float(steps[-1]["learning_rate"])
    return line | {"bad_steps": float(len(steps) - len(good))}
