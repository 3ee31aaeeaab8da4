"""Observes a run: detects hangs, accounts for time, shows progress, writes metrics."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import jax

from bert_jax.distributed import multihost
from bert_jax.distributed.watchdog import Watchdog
from bert_jax.errors import StorageError
from bert_jax.monitoring import writer
from bert_jax.monitoring.goodput import PARTS, Goodput, Startup
from bert_jax.monitoring.report import StepProgress
from bert_jax.monitoring.step_log import StepLog

if TYPE_CHECKING:
    from bert_jax.monitoring.trackers import Trackers

T = TypeVar("T")
Metrics = dict[str, jax.Array]


class Monitor:
    """Reports on one run, from start-up to the last checkpoint.

    As a context manager, it aborts a hung process while the context is open.
    """

    def __init__(self, startup: Startup | None = None):
        """Creates a monitor without a log.

        Args:
          startup: measures the activities until the first step, if given.
        """
        self._watchdog = Watchdog()
        self._startup = startup
        self._clock: Goodput | None = None  # None while no log is open
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
        self,
        names: Sequence[str],
        workdir: str,
        config: Mapping[str, Any],
    ) -> None:
        """Starts config.trackers in process 0, until the end of the context.

        Args:
          config: {key: value} to record.
        """
        if names and multihost.is_first():
            from bert_jax.monitoring.trackers import Trackers

            self._trackers = Trackers(names, workdir, config)

    def open_log(
        self,
        workdir: str,
        first_step: int,
        num_steps: int,
        log_every_steps: int,
        phase_index: int,
        rates: Callable[[int, float], dict[str, float]],
        format_steps: Callable[[dict[str, float]], str],
        on_steps: Callable[[int, Sequence[dict[str, Any]]], None],
        began: float,
    ) -> None:
        """Opens metrics.jsonl, dropping the lines of steps after `first_step`.

        Args:
          first_step: number of completed steps.
          num_steps: number of steps of the whole run.
          phase_index: phase of the last completed step.
          rates: see `StepLog`.
          format_steps: formats the metrics of a log line for printing.
          on_steps: see `StepLog`.
          began: `clock()` at the start of the time that no earlier line accounts for.
        """
        self.close()
        self._clock = Goodput(writer.read(workdir), first_step, began)
        self._writer = writer.open_writer(workdir, first_step, multihost.is_first())
        self._progress = StepProgress(first_step, num_steps)
        self._format_steps = format_steps
        self._log = StepLog(
            log_every_steps,
            rates,
            self._write_steps,
            on_steps,
            first_step,
            phase_index,
        )
        self._last_metrics = {}

    def close(self) -> None:
        """Closes the log. Steps since the last line are not written, see `flush`."""
        if self._clock is None:
            return
        self._clock = None
        self._progress.close()
        with contextlib.suppress(OSError, StorageError):
            self._writer.close()

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
        previous = self._clock.enter(part) if self._clock else part
        try:
            yield
        finally:
            if self._clock:
                self._clock.enter(previous)
            if self._startup:
                self._startup.mark(name)
            self._watchdog.heartbeat(name)

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """Yields the batches, counting the time that devices wait for each of them."""
        batches = iter(batches)
        assert self._clock is not None
        self._watchdog.begin("reading the first batch")
        while True:
            self._clock.enter("data")
            try:
                batch = next(batches)
            except StopIteration:
                return
            arrays: Any = self._last_metrics.values()
            if not all(array.is_ready() for array in arrays):
                self._clock.reassign("steps")  # devices were busy with the last step
            self._clock.enter("steps")
            if self._startup:
                self._startup.mark("data")
            yield batch

    def step(self, step: int, phase_index: int, metrics: Metrics) -> None:
        """Records the metrics of a step, and waits for the previous step.

        On a CPU, it waits for the step itself: simulated devices deadlock in
        collectives when steps queue up (seen with jax 0.10 and 0.12), and a CPU gains
        nothing from running ahead.

        Args:
          step: number of steps taken, including this one.
          metrics: scalars; they may still be computing.

        Raises:
          Exception: any error that `on_steps` raises.
        """
        if self._startup:
            self._startup.finish("first step", metrics, self.print)
        is_cpu = jax.default_backend() == "cpu"
        jax.block_until_ready(metrics if is_cpu else self._last_metrics)
        self._last_metrics = metrics
        self._watchdog.heartbeat(f"step {step:,}")
        self._progress.advance(step)
        self._log.add(step, phase_index, metrics)

    def log(self, step: int, line: dict[str, float], text: str) -> None:
        """Writes a line of other metrics, for example of an evaluation."""
        self._log.flush()
        self._write(step, line)
        self.print(f"step {step:,} {text}")
        self.stop_clock()

    def stop_clock(self) -> None:
        """Excludes the time until the next step is complete from throughput."""
        self._log.stop_clock()

    def flush(self) -> None:
        """Writes the steps since the last line, and commits all lines to disk."""
        self._log.flush()
        self._writer.flush()

    def log_time(self, step: int) -> None:
        """Writes a line that holds the time accounting only."""
        self._write(step, {})

    def seconds_of_steps(self) -> float:
        """Returns the time of all steps, with waiting for data and replays."""
        assert self._clock is not None
        return self._clock.seconds("steps", "data", "replaying")

    def set_last_step(self, step: int) -> None:
        """Sets the number of steps of the whole run, if it has changed."""
        self._progress.set_num_steps(step)

    def checkpoint(self, path: str) -> None:
        """Records the directory of the newest checkpoint in the trackers."""
        if self._trackers:
            self._trackers.checkpoint(path)

    def print(self, text: str) -> None:
        """Prints a line, above the progress bar if there is one."""
        self._progress.print(text)

    def tick(self, text: str) -> None:
        """Prints the progress of an activity if no line was printed for a while."""
        self._progress.tick(text)

    def _write_steps(self, step: int, line: dict[str, float]) -> None:
        self._write(step, line)
        self._progress.update(step, self._format_steps(line))

    def _write(self, step: int, line: dict[str, float]) -> None:
        assert self._clock is not None
        self._writer.write(step, line | self._clock.line())
