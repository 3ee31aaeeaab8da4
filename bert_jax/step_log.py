"""The log lines of a run: means over steps, read late so that no device waits."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import metrics as metrics_lib
from bert_jax.config import ExperimentConfig
from bert_jax.position import phase_of


class StepLog:
    """Turns the metrics of steps into log lines, without making the device wait.

    A line is the mean over the steps since the last one, of those that were finite. It
    is read from the device when the next step is under way, one step late.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        on_line: Callable[[int, dict[str, float]], None],
        on_steps: Callable[[int, Sequence[dict[str, Any]]], None],
        first_step: int = 0,
        unwritten: Sequence[dict[str, float]] = (),
    ):
        """Prepares for the first step, or for the one after `first_step`.

        Args:
          config: of the run.
          on_line: takes each line and its step.
          on_steps: told the number of the last step and the metrics of all those that a
            line is made of, before it is written; what it raises comes out of `add`,
            `flush` and `unwritten`.
          first_step: steps that are done.
          unwritten: what `unwritten` returned then.
        """
        self._config = config
        self._on_line, self._on_steps = on_line, on_steps
        self._peak_flops = metrics_lib.peak_flops() * jax.device_count()
        self._pending: list[dict[str, jax.Array]] = []  # on the devices
        self._fetched: list[dict[str, Any]] = list(unwritten)
        self._step = first_step
        self._phase_index = phase_of(config, max(first_step - 1, 0))[0]
        self._clock: float | None = None  # None: the time since is not only steps
        self._timed_steps = 0

    @property
    def is_full(self) -> bool:
        """Returns whether the steps since the last line make a line."""
        return self._step % self._config.log_every_steps == 0

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
        seconds = time.perf_counter() - self._clock if self._clock else 0.0
        line = _mean(self._fetched) | self._rates(seconds)
        self._fetched = []
        self._clock, self._timed_steps = time.perf_counter(), 0
        self._on_line(self._step, line)

    def unwritten(self) -> tuple[dict[str, float], ...]:
        """Returns the metrics of the steps since the last line.

        A checkpoint holds them, so that a run that is stopped between two lines writes
        the lines of one that is not.
        """
        self._fetch()
        return tuple(
            {name: float(value) for name, value in metrics.items()}
            for metrics in self._fetched
        )

    def _fetch(self) -> None:
        if self._pending:
            fetched, self._pending = jax.device_get(self._pending), []
            self._on_steps(self._step, fetched)
            self._fetched += fetched

    def stop_clock(self) -> None:
        """Says that what follows is not training: the next step restarts the clock."""
        self._clock = None

    def _rates(self, seconds: float) -> dict[str, float]:
        phase = self._config.phases[self._phase_index]
        rate = phase.global_batch_size * self._timed_steps / seconds if seconds else 0.0
        flops = metrics_lib.train_flops_per_sequence(
            self._config.model, self._config.tokenizer.vocab_size, phase
        )
        return {
            "sequences_per_sec": rate,
            "tokens_per_sec": rate * phase.sequence_length,
            "mfu": self._mfu(rate * flops),
        }

    def _mfu(self, flops: float) -> float:
        # A CPU's was measured beside other work, so it is measured again.
        if flops > self._peak_flops and jax.default_backend() == "cpu":
            again = metrics_lib.peak_flops() * jax.device_count()
            self._peak_flops = max(self._peak_flops, again)
        return flops / self._peak_flops


def _mean(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the mean of each metric over the finite steps, or over all if none is."""
    good = [metrics for metrics in steps if not metrics["bad_steps_in_row"]]
    line = {
        name: float(np.mean([metrics[name] for metrics in good or steps]))
        for name in steps[0]
    }
    del line["bad_steps_in_row"]
    line["learning_rate"] = float(steps[-1]["learning_rate"])
    return line | {"bad_steps": float(len(steps) - len(good))}
