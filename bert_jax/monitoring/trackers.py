"""Starts a process for each of config.trackers, and writes the metrics to it.

Nothing here waits for a tracker before the end of the run: a message is a line in a
pipe, which tracker_process.py reads at once.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax import storage
from bert_jax.errors import ConfigError
from bert_jax.monitoring import tracker_process, writer
from bert_jax.monitoring.tracker_process import Start

DIRECTORY = "trackers"  # in a workdir
RETRY_SECS = 60.0
# A process ends itself so long after its last message, even if metrics are not sent.
CLOSE_SECS = 30.0
# The time that a process may take to end itself, until it is killed.
EXIT_SECS = 5.0


def check_installed(names: Sequence[str]) -> str:
    """Returns "", for `multihost.agree`.

    Raises:
      ConfigError: if the library of a tracker is not installed.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"config.trackers: {name} is not installed; run pip install {name}, or"
                " remove it from config.trackers"
            )
    return ""


class TrackerWriter:
    """Writes metrics to the process of a tracker.

    A tracker that fails prints one line; it never raises an error here.
    """

    def __init__(
        self, name: str, workdir: str, first_step: int, config: Mapping[str, Any]
    ):
        """Starts the process and writes the lines of metrics.jsonl up to `first_step`.

        The process skips those that the tracked run has.

        Args:
          name: the tracker.
          workdir: directory of the run.
          first_step: number of completed steps.
          config: {key: value} to record.
        """
        self._name = name
        path = storage.absolute(workdir)
        directory = os.path.join(path, DIRECTORY)
        storage.make_directory(directory)
        # The process imports this package from the same place as this process.
        paths = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", tracker_process.__name__],
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the training process
        )
        start = Start(
            tracker=name,
            state_file=os.path.join(directory, f"{name}.json"),
            name=os.path.basename(path),
            config=dict(config),
            retry_secs=RETRY_SECS,
            close_secs=CLOSE_SECS,
        )
        self._send(dataclasses.asdict(start))
        for line in writer.read(workdir):
            if line["step"] <= first_step:
                self.write(line["step"], line)

    def write(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Logs the metrics of a step."""
        # Null is a metric that was not finite; trackers have clocks of their own.
        found = {k: v for k, v in metrics.items() if v is not None}
        found = {k: v for k, v in found.items() if k not in ("step", "time")}
        self._send({"kind": "metrics", "step": step, "values": found})

    def checkpoint(self, step: int, path: str) -> None:
        """Records the directory of the newest checkpoint."""
        values = {"checkpoint": path}
        self._send({"kind": "checkpoint", "step": step, "values": values})

    def image(self, step: int, path: str) -> None:
        """Logs an image file under its name."""
        values = {Path(path).stem: path}
        self._send({"kind": "image", "step": step, "values": values})

    def end(self, is_complete: bool) -> None:
        """Writes the last message; the process then ends within CLOSE_SECS."""
        self._send({"is_complete": is_complete})
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def wait(self, deadline: float) -> None:
        """Waits until the process has ended, and kills it at a monotonic time."""
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _send(self, message: dict[str, Any]) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        if pipe.closed:
            return
        try:
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()
        except OSError:
            with contextlib.suppress(OSError):
                pipe.close()
            print(
                f"config.trackers: the process of {self._name} has ended; rerun the"
                " same command to send the rest of the metrics",
                file=sys.stderr,
                flush=True,
            )


def close(trackers: Sequence[TrackerWriter], is_complete: bool) -> None:
    """Ends the tracked runs, and waits at most CLOSE_SECS + EXIT_SECS for all of them.

    Args:
      trackers: their writers.
      is_complete: whether the run ended without an error.
    """
    for tracker in trackers:
        tracker.end(is_complete)
    deadline = time.monotonic() + CLOSE_SECS + EXIT_SECS
    for tracker in trackers:
        tracker.wait(deadline)
