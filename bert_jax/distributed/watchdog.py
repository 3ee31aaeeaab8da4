"""Aborts a hung process and dumps the stacks of all threads."""

import collections
import faulthandler
import os
import statistics
import sys
import threading
import time
from typing import Self

from bert_jax.errors import EXIT_LOST

# The smallest limit of a step: slow storage or a late peer is not a hang.
PATIENCE_SECS = 600.0
# The limit of slow steps, as a multiple of the median of the last RECENT_STEPS.
PATIENCE_STEPS = 10
RECENT_STEPS = 100
# The limit of other activities: opening devices, a compilation, a save to a slow disk.
LONG_SECS = 3600.0


class Watchdog:
    """Prints the stacks of all threads and exits with code 76 if a step hangs.

    A thread watches for as long as the context is open.
    """

    def __init__(self, patience_secs: float = PATIENCE_SECS):
        self._patience_secs = patience_secs
        self._recent_secs: collections.deque[float] = collections.deque(
            maxlen=RECENT_STEPS
        )
        self._what = "the start"
        self._since: float | None = None  # None while there is no limit
        self._is_long = False  # the current activity is not a step
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

    def heartbeat(self, what: str) -> None:
        """Records the end of a step, or of an activity between steps."""
        now = time.monotonic()
        if self._since is not None and not self._is_long:
            self._recent_secs.append(now - self._since)
        self._what, self._since, self._is_long = what, now, False

    def begin(self, what: str) -> None:
        """Records the start of an activity that may take up to LONG_SECS."""
        what = f"the start of {what}"
        self._is_long, self._what, self._since = True, what, time.monotonic()

    def pause(self) -> None:
        """Removes the limit until `heartbeat` or `begin` is called."""
        self._since = None

    def limit_secs(self) -> float:
        """Returns the limit of the current step or activity, in seconds."""
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
                self._exit(limit)

    def _exit(self, limit: float) -> None:
        print(
            f"error: no progress for {limit:.0f} s after {self._what}; the stacks of"
            " all threads follow; rerun the same command to resume from the last"
            " checkpoint",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(all_threads=True)
        os._exit(EXIT_LOST)
