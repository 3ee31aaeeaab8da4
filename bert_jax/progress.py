"""How far long work has come: a bar on a terminal, else a line now and then."""

import os
import sys
import time
from types import TracebackType

import rich.progress

# Between plain lines: few enough to read of hours of work.
LINE_SECS = 10.0


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
          doing: one word.
          total: how much there is to do; None when nobody knows.
          unit: of total.
        """
        self._doing, self._total, self._unit = doing, total, unit
        self._start = self._last = time.monotonic()
        self._done = self._found_done = 0.0
        self._bar: rich.progress.Progress | None = None
        if has_terminal():
            self._bar = rich.progress.Progress(
                "{task.description}", rich.progress.BarColumn(), transient=True
            )
            self._task = self._bar.add_task(doing, total=total)

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, amount: float, *, found_done: bool = False) -> None:
        """Counts an amount; what was found done says nothing about the speed."""
        self._done += amount
        self._found_done += amount if found_done else 0.0
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=self.line())
            return
        now = time.monotonic()
        if now - self._last >= LINE_SECS:
            self._last = now
            print(self.line(), flush=True)

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
        if self._total is not None and self._done <= self._total:
            line += f", {(self._total - self._done) / rate:,.0f} s left"
        return line
