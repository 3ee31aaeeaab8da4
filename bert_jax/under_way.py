"""Logs the progress of work that cannot be measured while it runs."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Literal

TICK_SECS = 15.0


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
