"""Where the time of a run went, over all the calls that it took.

Every line of metrics.jsonl holds the seconds of each part so far, so that the next call
goes on counting, and knows what the end of the one before has cost.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

import bert_jax

# The parts of a run's time, and what a person calls them.
PARTS = {
    "steps": "steps",
    "compiling": "compiling",
    "data": "waiting for data",
    "saving": "saving",
    "evaluating": "evaluating",
    "replaying": "taking steps twice",
    "starting": "starting",
    "lost": "steps taken again",
    "down": "not running",
}
PREFIX = "seconds_"


class Goodput:
    """A stopwatch that is always in one part."""

    def __init__(
        self, lines: Sequence[dict[str, Any]], first_step: int, started: float
    ):
        """Goes on from the lines of the calls before.

        Steps after `first_step` were lost with the process that took them; the time
        from its last line to this process is "down", whatever it did meanwhile: the
        last save's end, or a start that came to no line.

        Args:
          lines: of metrics.jsonl, of all steps that calls before have reached.
          first_step: where this call goes on.
          started: when this process began, in seconds since 1970.
        """
        self._seconds = dict.fromkeys(PARTS, 0.0)
        last = max(_timed(lines), key=lambda line: line["time"], default=None)
        if last is not None:
            self._seconds |= _seconds(last)
            kept = [line for line in _timed(lines) if line["step"] <= first_step]
            steps = _seconds(kept[-1])["steps"] if kept else 0.0
            lost = max(self._seconds["steps"] - steps, 0.0)
            self._seconds["steps"] -= lost
            self._seconds["lost"] += lost
            self._seconds["down"] += max(started - last["time"], 0.0)
        self._part = "starting"
        self._since = time.perf_counter() - max(time.time() - started, 0.0)

    def enter(self, part: str) -> str:
        """Counts the time from now on in another part, and returns the part before."""
        now = time.perf_counter()
        self._seconds[self._part] += now - self._since
        before = self._part
        self._part, self._since = part, now
        return before

    def leave_as(self, part: str) -> None:
        """Says that the time since `enter` was of another part than thought."""
        self._part = part

    def line(self) -> dict[str, float]:
        """Returns what to add to a line of metrics.jsonl."""
        self.enter(self._part)
        total = sum(self._seconds.values())
        return {
            "time": time.time(),
            "goodput": self._seconds["steps"] / total if total else 0.0,
            **{f"{PREFIX}{part}": seconds for part, seconds in self._seconds.items()},
        }


def words(lines: Sequence[dict[str, Any]]) -> str:
    """Returns where the time of a run went, its largest parts first, or nothing."""
    timed = _timed(lines)
    if not timed:
        return ""
    seconds = _seconds(timed[-1])
    total = sum(seconds.values()) or 1.0
    others = sorted(
        ((value / total, PARTS[part]) for part, value in seconds.items()), reverse=True
    )
    shown = ", ".join(
        f"{share:.0%} {name}"
        for share, name in others
        if name != PARTS["steps"] and share >= 0.005
    )
    steps = seconds["steps"] / total
    return f"Of its time, over all calls, {steps:.0%} went into steps ({shown})."


def _timed(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = ["time", *(f"{PREFIX}{part}" for part in PARTS)]
    return [
        line
        for line in lines
        if all(isinstance(line.get(key), float | int) for key in keys)
    ]


def _seconds(line: dict[str, Any]) -> dict[str, float]:
    return {part: float(line[f"{PREFIX}{part}"]) for part in PARTS}


class Startup:
    """The seconds of each part of a start, in the order they came."""

    def __init__(self):
        self.began = bert_jax.BEGAN  # in seconds since 1970
        self._seconds = {"import": time.time() - self.began}
        self._marked = time.perf_counter()
        self._is_over = False

    def mark(self, part: str) -> None:
        """Says that the time since the mark before this one went to a part."""
        if not self._is_over:
            now = time.perf_counter()
            self._seconds[part] = now - self._marked
            self._marked = now

    def finish(self, part: str, result: Any, say: Callable[[str], None]) -> None:
        """Waits for the last part's arrays and tells it all, once."""
        if not self._is_over:
            jax.block_until_ready(result)
            self.mark(part)
            self._is_over = True
            say(self.words())

    def words(self) -> str:
        parts = (f"{part} {seconds:.1f} s" for part, seconds in self._seconds.items())
        return f"start:  {', '.join(parts)}"
