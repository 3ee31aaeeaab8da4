"""Ends a process that hangs, and says where: nobody pays for a machine that waits."""

import collections
import faulthandler
import os
import statistics
import sys
import threading
import time
from typing import Self

from bert_jax.errors import EXIT_LOST

# Slow storage, or a step that others are late for, is not a hang.
PATIENCE_SECS = 600.0
# For steps that are slow themselves: so many times the median of the last ones.
PATIENCE_STEPS = 10
RECENT_STEPS = 100
# What is no step: opening devices, a compilation, a save to a slow disk.
LONG_SECS = 3600.0


class Watchdog:
    """Prints the stacks of all threads and exits with 76 if a step hangs.

    It watches, from a thread of its own, as long as its context is open.
    """

    def __init__(self, patience_secs: float = PATIENCE_SECS):
        self._patience_secs = patience_secs
        self._recent_secs: collections.deque[float] = collections.deque(
            maxlen=RECENT_STEPS
        )
        self._what = "the start"
        self._since: float | None = None  # None: nothing is waited for
        self._is_long = False  # what is waited for is no step
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="watchdog", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def saw(self, what: str) -> None:
        """Says that the run went on just now, to a step or to what is between."""
        now = time.monotonic()
        if self._since is not None and not self._is_long:
            self._recent_secs.append(now - self._since)
        self._what, self._since, self._is_long = what, now, False

    def begin(self, what: str) -> None:
        """Says that something begins just now that may take up to LONG_SECS."""
        what = f"the start of {what}"
        self._is_long, self._what, self._since = True, what, time.monotonic()

    def rest(self) -> None:
        """Says that what comes may take any time, until `saw` or `begin` is called."""
        self._since = None

    def limit_secs(self) -> float:
        """Returns how long a step may take, or what began instead of one."""
        if self._is_long:
            return LONG_SECS
        if not self._recent_secs:
            return self._patience_secs
        slow = PATIENCE_STEPS * statistics.median(self._recent_secs.copy())
        return max(self._patience_secs, slow)

    def _watch(self) -> None:
        while not self._closed.wait(min(self._patience_secs / 10, 10.0)):
            since, limit = self._since, self.limit_secs()
            if since is not None and time.monotonic() - since > limit:
                self._leave(limit)

    def _leave(self, limit: float) -> None:
        print(
            f"error: nothing has happened for {limit:.0f} s after {self._what}; the"
            " stacks of all threads follow; the same command goes on at the last"
            " checkpoint",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(all_threads=True)
        os._exit(EXIT_LOST)
