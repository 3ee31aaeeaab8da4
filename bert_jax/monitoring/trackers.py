"""Starts a process for each of config.trackers, see tracker_process.py.

The training process sends it nothing: it only writes RUN_FILE at its start and end.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax import storage
from bert_jax.errors import ConfigError, StorageError
from bert_jax.monitoring import tracker_process
from bert_jax.monitoring.tracker_process import CLOSE_SECS, DIRECTORY, RUN_FILE

# The time in which a process notices that the run has ended, and is killed.
EXIT_SECS = 5.0
ERRORS = OSError, StorageError, ConfigError  # of storage; training continues


def check_installed(names: Sequence[str]) -> str:
    """Raises ConfigError if a library is missing; returns "", for `multihost.agree`."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"config.trackers: {name} is not installed; run pip install {name}, or"
                " remove it from config.trackers"
            )
    return ""


class Trackers:
    """The processes that send the metrics of a run to its trackers."""

    def __init__(self, names: Sequence[str], workdir: str, config: Mapping[str, Any]):
        """Starts the processes, which record the config."""
        workdir = storage.absolute(workdir)
        self._directory = os.path.join(workdir, DIRECTORY)
        self._run: dict[str, Any] = {"config": config}
        try:
            storage.make_directory(self._directory)
            self._write(status="running", checkpoint="")
        except ERRORS as error:
            print(f"config.trackers: nothing is sent, because {error}", file=sys.stderr)
            names = ()
        # The processes import this package from the same place as this process.
        paths = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
        command = [sys.executable, "-m", tracker_process.__name__]
        self._processes = {
            name: subprocess.Popen(
                [*command, name, workdir, str(os.getpid())],
                env=os.environ | {"PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the training process
            )
            for name in dict.fromkeys(names)
        }

    def checkpoint(self, path: str) -> None:
        """Records the directory of the newest checkpoint."""
        with contextlib.suppress(*ERRORS):
            self._write(checkpoint=path)

    def end(self, is_complete: bool) -> None:
        """Waits until everything is sent, at most CLOSE_SECS + EXIT_SECS for all."""
        with contextlib.suppress(*ERRORS):
            self._write(status="complete" if is_complete else "stopped")
        deadline = time.monotonic() + CLOSE_SECS + EXIT_SECS
        for name, process in self._processes.items():
            try:
                code = process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                code = -signal.SIGKILL
            if code:
                print(
                    f"config.trackers: {name} did not get all metrics; rerun the same"
                    " command to send the rest",
                    file=sys.stderr,
                    flush=True,
                )

    def _write(self, **values: str) -> None:
        self._run |= values
        content = (json.dumps(self._run) + "\n").encode()
        storage.write(os.path.join(self._directory, RUN_FILE), content)
