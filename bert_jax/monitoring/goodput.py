"""Accounts for the wall-clock time of a run, across restarts.

Each line of metrics.jsonl holds the cumulative seconds of every part, so that a resumed
run continues the totals and can compute the time that the interruption cost.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

from bert_jax import clock

# The parts of a run's time, and their names in reports.
PARTS = {
    "steps": "steps",
    "compiling": "compiling",
    "data": "waiting for data",
    "saving": "saving",
    "evaluating": "evaluating",
    "replaying": "replaying steps",
    "starting": "starting",
    "lost": "repeating lost steps",
    "down": "not running",
}
PREFIX = "seconds_"


class Goodput:
    """A stopwatch that attributes each second to exactly one part."""

    def __init__(self, lines: Sequence[dict[str, Any]], first_step: int, began: float):
        """Continues the totals of the earlier calls, from the lines of metrics.jsonl.

        The time of steps after `first_step` is counted as lost, because they have to be
        repeated. The time from the last line to the start of this process, `began` by
        `clock()`, is "down": it includes the end of the last save, and starts that
        wrote no line. It alone is a difference of times of day, because the last
        process may have run before a boot or on another machine.
        """
        timed = _timed(lines)
        self._seconds = _totals(timed)
        if timed:
            kept = [line for line in timed if line["step"] <= first_step]
            lost = max(self._seconds["steps"] - _totals(kept)["steps"], 0.0)
            self._seconds["steps"] -= lost
            self._seconds["lost"] += lost
            started = time.time() - (clock() - began)
            self._seconds["down"] += max(started - timed[-1]["time"], 0.0)
        self._part, self._since = "starting", began

    def enter(self, part: str) -> str:
        """Counts time in `part` from now on, and returns the previous part."""
        now = clock()
        self._seconds[self._part] += now - self._since
        previous = self._part
        self._part, self._since = part, now
        return previous

    def reassign(self, part: str) -> None:
        """Counts the time since the last `enter` in `part` instead."""
        self._part = part

    def seconds(self, *parts: str) -> float:
        self.enter(self._part)
        return sum(self._seconds[part] for part in parts)

    def line(self) -> dict[str, float]:
        """Returns the time and the totals to add to a line of metrics.jsonl."""
        self.enter(self._part)
        total = sum(self._seconds.values())
        return {
            "time": time.time(),
            "goodput": self._seconds["steps"] / total if total else 0.0,
            **{f"{PREFIX}{part}": seconds for part, seconds in self._seconds.items()},
        }


def summary(lines: Sequence[dict[str, Any]]) -> str:
    """Returns the largest shares of the time as a sentence, "" without timed lines."""
    timed = _timed(lines)
    if not timed:
        return ""
    seconds = _totals(timed)
    total = sum(seconds.values()) or 1.0
    steps = seconds.pop("steps") / total
    others = sorted(((secs / total, PARTS[part]) for part, secs in seconds.items()))
    shown = (f"{share:.0%} {name}" for share, name in others[::-1] if share >= 0.005)
    parts = ", ".join(shown)
    return f"Steps took {steps:.0%} of the run's time, over all calls ({parts})."


def running_seconds(lines: Sequence[dict[str, Any]]) -> float:
    """Returns the time of all calls up to the last line."""
    seconds = _totals(_timed(lines))
    return sum(secs for part, secs in seconds.items() if part != "down")


def _timed(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the lines that have times; lines of older versions have none."""
    keys = ["time", *(f"{PREFIX}{part}" for part in PARTS)]

    def is_time(value: Any) -> bool:
        return isinstance(value, float | int) and math.isfinite(value)

    return [line for line in lines if all(is_time(line.get(key)) for key in keys)]


def _totals(timed: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the seconds of each part up to the last line."""
    last = timed[-1] if timed else {}
    return {part: float(last.get(f"{PREFIX}{part}", 0.0)) for part in PARTS}
