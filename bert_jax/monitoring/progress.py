"""Shows the progress of long work: a bar on a terminal, lines in a log file."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Literal

import rich.progress

TICK_SECS = 15.0  # interval of the lines of `TaskLog`

# The shortest and longest interval between plain lines. Between these limits it is a
# tenth of the elapsed time: six lines in the first minute, and 60 in an hour.
LINE_SECS = 10.0
MAX_LINE_SECS = 60.0


def has_terminal() -> bool:
    """Returns whether standard output can show a line that changes in place.

    A notebook is a terminal for the commands that it runs, but shows every change as a
    new line; it sets TERM=dumb. A closed standard output is None.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM") != "dumb"


class Progress:
    """Shows how much of a piece of work is done, its speed and the time left.

    with Progress("tokenizing", 640, "MB") as progress:
        progress.add(1)
    """

    def __init__(self, doing: str, total: float | None, unit: str):
        """Creates a display; the context manager shows it.

        Args:
          doing: a gerund phrase that names the work.
          total: the amount of work; None if it is unknown.
          unit: the unit of `total`, for example "MB".
        """
        self._doing, self._total, self._unit = doing, total, unit
        self._start = time.monotonic()
        self._done = self._found_done = 0.0
        self._bar: rich.progress.Progress | None = None
        self._lines = _Lines(self.line)
        if has_terminal():
            self._bar = rich.progress.Progress(
                "{task.description}", rich.progress.BarColumn(), transient=True
            )
            self._task = self._bar.add_task(doing, total=total)

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        else:
            self._lines.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._lines.stop() and error is None:
            secs = time.monotonic() - self._start
            _print(f"{self._doing}: {self._done:,.0f} {self._unit} in {secs:,.0f} s")

    def add(self, amount: float, *, found_done: bool = False) -> None:
        """Adds an amount of completed work.

        Args:
          amount: in the unit of the total.
          found_done: whether an earlier call did this work; the speed excludes it.
        """
        self._done += amount
        self._found_done += amount if found_done else 0.0
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=self.line())

    def line(self) -> str:
        """Returns a line like "tokenizing: 12 of 640 MB, 3.1 MB/s, 203 s left"."""
        elapsed_secs = max(time.monotonic() - self._start, 1e-3)
        rate = (self._done - self._found_done) / elapsed_secs
        line = f"{self._doing}: {self._done:,.0f}"
        # The total is an estimate: the markup of a file is not part of its documents.
        if self._total is not None and self._done <= self._total:
            line += f" of {self._total:,.0f}"
        line += f" {self._unit}"
        if not rate:
            return line
        line += f", {rate:,.1f}" if rate >= 1 else f", {rate:.2g}"
        line += f" {self._unit}/s"
        if self._total is not None and self._done < self._total:
            line += f", {(self._total - self._done) / rate:,.0f} s left"
        return line


class _Lines:
    """Prints a line at intervals, from a thread, since amounts may be added rarely."""

    def __init__(self, line: Callable[[], str]):
        self._line = line
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._num_printed = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Stops printing and returns whether any line was printed."""
        self._over.set()
        self._thread.join()
        return self._num_printed > 0

    def _run(self) -> None:
        start = time.monotonic()
        while not self._over.wait(line_interval(time.monotonic() - start)):
            _print(self._line())
            self._num_printed += 1


def line_interval(elapsed_secs: float) -> float:
    """Returns the number of seconds until the next line."""
    return min(max(LINE_SECS, elapsed_secs / 10), MAX_LINE_SECS)


def _print(line: str) -> None:
    if sys.stdout is not None:  # it is None if it was closed
        sys.stdout.write(f"{line}\n")  # one call, because other threads print as well
        sys.stdout.flush()


class TaskLog:
    """Prints when each task of a longer job starts and ends, and how long it takes."""

    def __init__(self, command: str, stream: Literal["stdout", "stderr"] = "stderr"):
        """Creates a log."""
        self._command, self._stream = command, stream

    def print(self, text: str) -> None:
        """Prints a line, prefixed with the command."""
        # One call, because another thread may print as well.
        stream = getattr(sys, self._stream)
        stream.write(f"{self._command}: {text}\n")
        stream.flush()

    @contextlib.contextmanager
    def task(self, name: str) -> Iterator[None]:
        """Prints a line at the start and the end of a task, and at intervals."""
        start, over = time.monotonic(), threading.Event()

        def tick() -> None:
            while not over.wait(TICK_SECS):
                self.print(f"{name}: {time.monotonic() - start:.0f} s so far")

        self.print(f"{name} ...")
        ticking = threading.Thread(target=tick, daemon=True)
        ticking.start()
        try:
            yield
        finally:
            over.set()
            ticking.join()
        self.print(f"{name}: {time.monotonic() - start:.0f} s")
