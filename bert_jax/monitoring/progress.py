"""Shows the progress of long work and of steps: a bar on a terminal, or lines."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import rich.progress

# The shortest and longest interval between plain lines. Between these limits it is a
# tenth of the elapsed time: six lines in the first minute, and 60 in an hour.
LINE_SECS = 10.0
MAX_LINE_SECS = 60.0
# The longest time without a line while steps complete.
QUIET_SECS = 30.0


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
        """Prepares to show `doing`, a gerund phrase; an unknown total is None."""
        self._doing, self._total, self._unit = doing, total, unit
        self._start = time.monotonic()
        self._done = self._found_done = 0.0
        self._bar: rich.progress.Progress | None = None
        self._num_printed = 0
        self._shown = contextlib.ExitStack()
        if has_terminal():
            self._bar = rich.progress.Progress(
                "{task.description}", rich.progress.BarColumn(), transient=True
            )
            self._task = self._bar.add_task(doing, total=total)

    def __enter__(self) -> "Progress":
        self._shown.enter_context(self._bar or _ticking(self._print_line))
        return self

    def __exit__(self, *exception: object) -> None:
        self._shown.close()
        if self._num_printed and exception[0] is None:
            secs = time.monotonic() - self._start
            _print(f"{self._doing}: {self._done:,.0f} {self._unit} in {secs:,.0f} s")

    def add(self, amount: float, *, found_done: bool = False) -> None:
        """Adds completed work; the speed excludes what an earlier call did."""
        self._done += amount
        self._found_done += amount if found_done else 0.0
        if self._bar:
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

    def _print_line(self) -> None:
        _print(self.line())
        self._num_printed += 1


@contextlib.contextmanager
def _ticking(print_line: Callable[[], None]) -> Iterator[None]:
    """Prints lines from a thread, at intervals of `line_interval`."""
    start, over = time.monotonic(), threading.Event()

    def tick() -> None:
        while not over.wait(line_interval(time.monotonic() - start)):
            print_line()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def line_interval(elapsed_secs: float) -> float:
    """Returns the number of seconds until the next line."""
    return min(max(LINE_SECS, elapsed_secs / 10), MAX_LINE_SECS)


def _print(line: str) -> None:
    if sys.stdout is not None:  # it is None if it was closed
        sys.stdout.write(f"{line}\n")  # one call, because other threads print as well
        sys.stdout.flush()


@contextlib.contextmanager
def task(name: str) -> Iterator[None]:
    """Prints a line at the start and the end of a task, and at intervals."""
    start = time.monotonic()

    def print_line(end: str = " so far") -> None:
        _print(f"{name}: {time.monotonic() - start:.0f} s{end}")

    _print(f"{name} ...")
    with _ticking(print_line):
        yield
    print_line("")


# ---------------------------------------------------------------------------- steps


class StepProgress:
    """Prints metrics as lines with the step and the time left."""

    def __init__(self, first_step: int, num_steps: int):
        self.num_steps = num_steps
        self._width = len(_place(num_steps, num_steps))
        self._timed_from: tuple[int, float] | None = None  # step, seconds
        self._done = first_step
        self._printed_at = time.monotonic()

    def advance(self, step: int) -> None:
        if self._timed_from is None:
            self._timed_from = step, time.monotonic()
            self._printed_at = time.monotonic()
        self._done = step
        self.tick("")

    def tick(self, text: str) -> None:
        """Prints the step and a text if there was no line for QUIET_SECS."""
        if time.monotonic() - self._printed_at >= QUIET_SECS:
            self.print(f"{_place(self._done, self.num_steps)}{text}{self._left()}")

    def update(self, step: int, text: str) -> None:
        """Prints a log line; `text` is its formatted metrics."""
        place = _place(step, self.num_steps)
        self.print(f"{place:<{self._width}}  {text}{self._left()}")

    def _left(self) -> str:
        if self._timed_from is None or self._done == self._timed_from[0]:
            return ""
        step, when = self._timed_from
        step_secs = (time.monotonic() - when) / (self._done - step)
        return f"  {format_duration(step_secs * (self.num_steps - self._done))} left"

    def print(self, text: str) -> None:
        """Prints a line; a run continues when its terminal has been closed."""
        self._printed_at = time.monotonic()
        try:
            print(text, flush=True)
        except BrokenPipeError:  # the reader of the pipe stopped on purpose
            raise
        except OSError:
            pass


def _place(step: int, num_steps: int) -> str:
    return f"step {step:,}/{num_steps:,}"


def format_duration(seconds: float) -> str:
    """Formats seconds as 45 s, 3 min 20 s or 2 h 05 min."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {secs:02d} s" if minutes else f"{secs} s"
