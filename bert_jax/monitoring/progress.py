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

TICK_SECS = 15.0

# Between plain lines at first, and at most. In between it is a tenth of the time since
# the start: six lines in the first minute, and 60 in an hour.
LINE_SECS = 10.0
MAX_LINE_SECS = 60.0


def has_terminal() -> bool:
    """Returns whether a line that changes can be shown.

    A notebook is a terminal to its commands, but keeps every change as a line;
    TERM=dumb tells of such. A closed standard output is None.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM") != "dumb"


class Progress:
    """Used as `with Progress("tokenizing", 640, "MB") as progress: progress.add(1)`."""

    def __init__(self, doing: str, total: float | None, unit: str):
        """Sets up.

        Args:
          doing: a few words.
          total: how much there is to do; None when that is not known.
          unit: of total.
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
        """Counts an amount; what was found done says nothing about the speed."""
        self._done += amount
        self._found_done += amount if found_done else 0.0
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=self.line())

    def line(self) -> str:
        """Returns for example "tokenizing: 12 of 640 MB, 3.1 MB/s, 203 s left"."""
        elapsed_secs = max(time.monotonic() - self._start, 1e-3)
        rate = (self._done - self._found_done) / elapsed_secs
        line = f"{self._doing}: {self._done:,.0f}"
        # The total is a guess: markup is text of a file but not of its documents.
        if self._total is not None and self._done <= self._total:
            line += f" of {self._total:,.0f}"
        line += f" {self._unit}"
        if not rate:  # nothing was timed yet
            return line
        line += f", {rate:,.1f}" if rate >= 1 else f", {rate:.2g}"
        line += f" {self._unit}/s"
        if self._total is not None and self._done < self._total:
            line += f", {(self._total - self._done) / rate:,.0f} s left"
        return line


class _Lines:
    """Prints a line now and then, from a thread: the work may count in large steps."""

    def __init__(self, line: Callable[[], str]):
        self._line = line
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._num_printed = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Returns whether any line was printed."""
        self._over.set()
        self._thread.join()
        return self._num_printed > 0

    def _run(self) -> None:
        start = time.monotonic()
        while not self._over.wait(line_interval(time.monotonic() - start)):
            _print(self._line())
            self._num_printed += 1


def line_interval(elapsed_secs: float) -> float:
    """Returns after how many seconds the next line is due."""
    return min(max(LINE_SECS, elapsed_secs / 10), MAX_LINE_SECS)


def _print(line: str) -> None:
    if sys.stdout is not None:  # it is when it is closed
        sys.stdout.write(f"{line}\n")  # in one piece, whatever other threads print
        sys.stdout.flush()


class UnderWay:
    """Says what is under way, in which part of the work, and how many are in it."""

    def __init__(self, command: str, stream: Literal["stdout", "stderr"] = "stderr"):
        """Sets up.

        Args:
          command: begins every line.
          stream: where lines are written.
        """
        self._command, self._stream = command, stream
        self._part, self._most, self._number = "", 0, 0

    def begin(self, part: str, most: int) -> None:
        """Makes what follows a part of the work; it has `most` pieces, or fewer."""
        self._part, self._most, self._number = part, most, 0

    def say(self, text: str) -> None:
        # In one piece: there may be another in another thread.
        stream = getattr(sys, self._stream)
        stream.write(f"{self._command}: {text}\n")
        stream.flush()

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Says that a piece has begun, every now and then, and how long it took."""
        self._number += 1
        line = f"{self._part}{self._count()}: {what}" if self._part else what
        start, over = time.monotonic(), threading.Event()

        def tick() -> None:
            while not over.wait(TICK_SECS):
                self.say(f"{line}: {time.monotonic() - start:.0f} s so far")

        self.say(f"{line} ...")
        ticking = threading.Thread(target=tick, daemon=True)
        ticking.start()
        try:
            yield
        finally:
            over.set()
            ticking.join()
        self.say(f"{line}: {time.monotonic() - start:.0f} s")

    def _count(self) -> str:
        if self._most == 1:
            return ""
        if self._number > self._most:  # a search whose every guess was wrong goes on
            return f" {self._number}"
        return f" {self._number} of at most {self._most}"
