"""Observes a run: detects hangs, accounts for time, shows progress, writes metrics."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import jax
import numpy as np

import bert_jax
from bert_jax import clock
from bert_jax.distributed import multihost
from bert_jax.distributed.stopping import Watchdog
from bert_jax.errors import StorageError
from bert_jax.monitoring import writer
from bert_jax.monitoring.goodput import PARTS, Goodput
from bert_jax.monitoring.progress import StepProgress

if TYPE_CHECKING:
    from bert_jax.monitoring.trackers import Trackers

T = TypeVar("T")
Metrics = dict[str, jax.Array]


class Monitor:
    """Reports on one run, from start-up to the last checkpoint.

    As a context manager, it aborts a hung process while the context is open.
    """

    def __init__(self, prints_start: bool = False):
        """Creates a monitor without a log; it may print the times of the start."""
        self._watchdog = Watchdog()
        # Seconds of each stage before the first step; None if they are not printed.
        self._stages: dict[str, float] | None = {} if prints_start else None
        self._marked = bert_jax.BEGAN
        self._mark("import")
        self._goodput: Goodput | None = None  # None while no log is open
        self._last_metrics: Metrics = {}
        self._trackers: Trackers | None = None

    def __enter__(self) -> Self:
        self._watchdog.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        if self._trackers:
            self._trackers.end(is_complete=exception[0] is None)
        self._watchdog.__exit__(*exception)

    def open_trackers(
        self, names: Sequence[str], workdir: str, config: Mapping[str, Any]
    ) -> None:
        """Starts config.trackers in process 0, until the end of the context."""
        if names and multihost.is_first():
            from bert_jax.monitoring.trackers import Trackers

            self._trackers = Trackers(names, workdir, config)

    # -------------------------------------------------------------------------- log

    def open_log(
        self,
        workdir: str,
        first_step: int,
        num_steps: int,
        log_every_steps: int,
        rates: Callable[[int, float], dict[str, float]],
        format_steps: Callable[[dict[str, float]], str],
        on_steps: Callable[[int, Sequence[dict[str, Any]]], None],
        began: float,
    ) -> None:
        """Opens metrics.jsonl, dropping the lines of steps after `first_step`.

        Args:
          rates: (phase index, steps per second) -> throughput metrics of a line.
          on_steps: called with (last step, metrics of each step since the last line)
            before a line is written; `step` and `flush` pass on its exceptions.
          began: `clock()` at the start of the time that no earlier line accounts for.
        """
        self.close()
        self._goodput = Goodput(writer.read(workdir), first_step, began)
        self._writer = None
        if multihost.is_first():
            self._writer = writer.MetricsWriter(workdir, first_step)
        self.progress = StepProgress(first_step, num_steps)
        self._log_every_steps = log_every_steps
        self._rates, self._format_steps = rates, format_steps
        self._on_steps = on_steps
        self._pending: list[Metrics] = []  # on the devices, since the last line
        self._step, self._phase_index = first_step, 0
        self._timed_from: float | None = None  # None while steps are not timed
        self._timed_steps = 0
        self._last_metrics = {}

    def close(self) -> None:
        """Closes the log. Steps since the last line are not written, see `flush`."""
        if self._goodput is None:
            return
        self._goodput = None
        if self._writer:
            with contextlib.suppress(OSError, StorageError):
                self._writer.flush()

    def step(self, step: int, phase_index: int, metrics: Metrics) -> None:
        """Records the metrics of step number `step`, which may still be computing.

        A line is the mean over the finite steps since the last line. It is fetched one
        step late, while the next step runs, so that the devices do not wait.

        This waits for the previous step. On a CPU, it waits for the step itself:
        simulated devices deadlock in collectives when steps queue up (seen with jax
        0.10 and 0.12), and a CPU gains nothing from running ahead.
        """
        if self._stages is not None:
            jax.block_until_ready(metrics)
            self._mark("first step")
            stages = (f"{name} {secs:.1f} s" for name, secs in self._stages.items())
            self.print(f"start:  {', '.join(stages)}")
            self._stages = None
        is_cpu = jax.default_backend() == "cpu"
        jax.block_until_ready(metrics if is_cpu else self._last_metrics)
        self._last_metrics = metrics
        self._watchdog.heartbeat(f"step {step:,}")
        self.progress.advance(step)
        is_new_phase = phase_index != self._phase_index
        if self._step % self._log_every_steps == 0 or is_new_phase:
            self._write_steps()
        if self._timed_from is None or is_new_phase:
            # This step is not timed, because it includes compilation or an evaluation.
            jax.block_until_ready(metrics)
            self._timed_from, self._timed_steps = time.perf_counter(), 0
        else:
            self._timed_steps += 1
        self._pending.append(metrics)
        self._step, self._phase_index = step, phase_index

    def log(self, step: int, line: dict[str, float], text: str) -> None:
        """Writes a line of other metrics, for example of an evaluation."""
        self._write_steps()
        self.write(step, line)
        self.print(f"step {step:,} {text}")
        self.stop_clock()

    def flush(self) -> None:
        """Writes the steps since the last line, and commits all lines to disk."""
        self._write_steps()
        if self._writer:
            self._writer.flush()

    def write(self, step: int, line: dict[str, float]) -> None:
        """Writes a line with the time accounting, and with nothing else if it is {}."""
        assert self._goodput is not None
        if self._writer:
            self._writer.write(step, line | self._goodput.line())

    def stop_clock(self) -> None:
        """Excludes the time until the next step is complete from throughput."""
        self._timed_from = None

    def print(self, text: str) -> None:
        self.progress.print(text)

    def _write_steps(self) -> None:
        if not self._pending:
            return
        fetched, self._pending = jax.device_get(self._pending), []
        self._on_steps(self._step, fetched)
        line = _mean(fetched)
        if self._timed_from is not None and self._timed_steps:
            seconds = time.perf_counter() - self._timed_from
            line |= self._rates(self._phase_index, self._timed_steps / seconds)
        self._timed_from, self._timed_steps = time.perf_counter(), 0
        self.write(self._step, line)
        self.progress.update(self._step, self._format_steps(line))

    # ------------------------------------------------------------------------- time

    @contextlib.contextmanager
    def activity(self, name: str, *, is_bounded: bool = True) -> Iterator[None]:
        """Times and watches an activity between steps.

        Args:
          name: a gerund phrase. If it is a key of `goodput.PARTS`, for example
            "saving", the time is counted in that part, otherwise in "starting".
          is_bounded: whether the watchdog aborts the process after an hour.
        """
        if is_bounded:
            self._watchdog.begin(name)
        else:
            self._watchdog.pause()
        part = name if name in PARTS else "starting"
        previous = self._goodput.enter(part) if self._goodput else part
        try:
            yield
        finally:
            if self._goodput:
                self._goodput.enter(previous)
            self._mark(name)
            self._watchdog.heartbeat(name)

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """Yields the batches, counting the time that devices wait for each of them."""
        batches = iter(batches)
        assert self._goodput is not None
        self._watchdog.begin("reading the first batch")
        while True:
            self._goodput.enter("data")
            try:
                batch = next(batches)
            except StopIteration:
                return
            arrays: Any = self._last_metrics.values()
            if not all(array.is_ready() for array in arrays):
                self._goodput.reassign("steps")  # devices were busy with the last step
            self._goodput.enter("steps")
            self._mark("data")
            yield batch

    def _mark(self, stage: str) -> None:
        """Ends a stage of the start, which began at the previous mark."""
        if self._stages is not None:
            now = clock()
            self._stages[stage], self._marked = now - self._marked, now

    def seconds_of_steps(self) -> float:
        """Returns the time of all steps, with waiting for data and replays."""
        assert self._goodput is not None
        return self._goodput.seconds("steps", "data", "replaying")


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
