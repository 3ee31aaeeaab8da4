"""Sends the metrics of a run to one tracker: Weights & Biases, MLflow or Trackio.

    python -m bert_jax.monitoring.tracker_process

trackers.py starts this process and writes JSON messages to its standard input, one a
line; the first one holds the fields of `Start`. The libraries run here, not in the
training process: they print, register exit handlers and wait for servers, wandb 0.31
without limit when the process exits. A training process that is killed closes the
pipe, and the lines that it has written are still sent.

Each class at the end of this module is a tracker. Those libraries read their own
environment variables, such as WANDB_API_KEY, WANDB_MODE, MLFLOW_TRACKING_URI and
TRACKIO_SPACE_ID. A config never holds a key, and no key is written or printed here.
"""

import contextlib
import dataclasses
import json
import os
import queue
import re
import secrets
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from bert_jax import storage
from bert_jax.errors import StorageError

PROJECT = "bert_jax"
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Start:
    """The first message.

    Attributes:
      tracker: a key of TRACKERS.
      state_file: JSON file with the id of the tracked run and the last step of each of
        its values.
      name: name of a new tracked run.
      config: {key: value} to record.
      retry_secs: seconds between attempts after an error.
      close_secs: seconds that the process may take to end.
    """

    tracker: str
    state_file: str
    name: str
    config: dict[str, Any]
    retry_secs: float
    close_secs: float


class Tracker(Protocol):
    """A tracked run; each method raises the library's exception if it fails.

    Attributes:
      url: address of the tracked run, "" if there is none to print.
    """

    url: str

    def metrics(self, step: int, **metrics: float) -> None:
        """Logs metrics at a step; steps do not decrease."""

    def checkpoint(self, step: int, checkpoint: str) -> None:
        """Records the directory of the newest checkpoint."""

    def image(self, step: int, **paths: str) -> None:
        """Logs image files."""

    def close(self, is_complete: bool) -> None:
        """Waits until everything is sent, and ends the tracked run."""


class Sender:
    """Sends messages to a tracker in order, repeating those that fail."""

    def __init__(self, start: Start, report: Callable[[str], None]):
        self._start, self._report = start, report
        self._file = start.state_file
        self._has_reported = False
        self._state: dict[str, Any] = {}
        self._tracker: Any = None

    def open(self) -> None:
        """Opens the tracked run of the workdir, or a new one."""
        if not storage.is_remote(self._file):
            self._lock = open(self._file.removesuffix(".json") + ".lock", "w")
            # The process of a killed run may still be sending.
            while not storage.acquire(self._lock.fileno()):
                time.sleep(0.1)
        if storage.exists(self._file):
            self._state = json.loads(storage.read(self._file))
        else:
            self._state = {"id": secrets.token_hex(4), "last_steps": {}}
            self._save()
        self._repeat(self._open_tracker)
        if self._tracker.url:
            self._report(f"{self._start.tracker}: {self._tracker.url}")

    def _open_tracker(self) -> None:
        kind = TRACKERS[self._start.tracker]
        self._tracker = kind(self._state["id"], self._start.name, self._start.config)

    def send(self, message: dict[str, Any]) -> bool:
        """Sends a message; returns False after the last one, which closes the run.

        A value of a step that was sent before is skipped: a resumed run repeats steps,
        and begins with the lines of earlier calls.
        """
        if "is_complete" in message:
            self._repeat(lambda: self._tracker.close(message["is_complete"]))
            return False
        kind, step, sent = message["kind"], message["step"], self._state["last_steps"]
        values = {k: v for k, v in message["values"].items() if step > sent.get(k, 0)}
        if values:
            with contextlib.ExitStack() as copies:
                if kind == "image":  # trackers read local files
                    values = {
                        k: copies.enter_context(storage.local_copy(path))
                        for k, path in values.items()
                    }
                self._repeat(lambda: getattr(self._tracker, kind)(step, **values))
            sent |= dict.fromkeys(values, step)
            self._save()
        return True

    def _save(self) -> None:
        with contextlib.suppress(OSError, StorageError):
            storage.write(self._file, (json.dumps(self._state) + "\n").encode())

    def _repeat(self, do: Callable[[], None]) -> None:
        while True:
            try:
                return do()
            except Exception as error:
                self.warn(f"{type(error).__name__}: {error}")
                time.sleep(self._start.retry_secs)

    def warn(self, reason: str) -> None:
        """Reports the first failure in one line."""
        if not self._has_reported:
            self._has_reported = True
            self._report(
                f"{self._start.tracker} failed ({without_secrets(reason)}); training"
                f" continues, and sending is retried every {self._start.retry_secs:g} s"
            )


def without_secrets(text: str) -> str:
    """Returns the start of a message in one line, without passwords and keys."""
    text = re.sub(r"//[^/@\s]*@", "//", text)  # user:password@ in a URL
    text = re.sub(r"\?\S*", "", text)  # the query of a URL
    for name, value in os.environ.items():
        if value and SECRET.search(name):
            text = text.replace(value, "***")
    return " ".join(text.split())[:200]


class Wandb:
    """A run of Weights & Biases.

    With WANDB_MODE=offline, each call writes a directory of its own with the same run
    id; `wandb sync` uploads them in order as one run.
    """

    def __init__(self, id: str, name: str, config: dict[str, Any]):
        import wandb  # pyright: ignore[reportMissingImports]

        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,  # the URL of a remote may hold a token
        )
        self._image = wandb.Image
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=id,
            name=name,
            config=config,
            resume="allow",
            allow_val_change=True,
            settings=settings,
        )
        self.url = "" if self._run.offline else self._run.url

    def metrics(self, step: int, **metrics: float) -> None:
        self._run.log(metrics, step=step)

    def checkpoint(self, step: int, checkpoint: str) -> None:
        self._run.summary["checkpoint"] = checkpoint

    def image(self, step: int, **paths: str) -> None:
        self._run.log({k: self._image(path) for k, path in paths.items()}, step=step)

    def close(self, is_complete: bool) -> None:
        self._run.finish(exit_code=0 if is_complete else 1)


class Mlflow:
    """A run of MLflow, found by its tag when it is resumed."""

    TAG = "bert_jax_run"
    url = ""

    def __init__(self, id: str, name: str, config: dict[str, Any]):
        # By default, a request is retried for minutes before it fails.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        from mlflow import entities  # pyright: ignore[reportMissingImports]
        from mlflow.tracking import client  # pyright: ignore[reportMissingImports]

        self._metric = entities.Metric
        self._client = client.MlflowClient()
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        runs = self._client.search_runs([experiment], f"tags.{self.TAG} = '{id}'")
        if runs:
            run = runs[0]
            self._client.update_run(run.info.run_id, status="RUNNING")
        else:
            tags = {self.TAG: id}
            run = self._client.create_run(experiment, tags=tags, run_name=name)
        self._id = run.info.run_id
        # A parameter of MLflow cannot be changed. Its values have at most 6,000
        # characters, and a batch has at most 100 of them.
        params = [
            entities.Param(key, str(value)[:6000])
            for key, value in config.items()
            if key not in run.data.params
        ]
        for i in range(0, len(params), 100):
            self._client.log_batch(self._id, params=params[i : i + 100])

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return found.experiment_id if found else self._client.create_experiment(name)

    def metrics(self, step: int, **metrics: float) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(
            self._id, [self._metric(*item, now, step) for item in metrics.items()]
        )

    def checkpoint(self, step: int, checkpoint: str) -> None:
        self._client.set_tag(self._id, "checkpoint", checkpoint)

    def image(self, step: int, **paths: str) -> None:
        for path in paths.values():
            self._client.log_artifact(self._id, path)

    def close(self, is_complete: bool) -> None:
        status = "FINISHED" if is_complete else "KILLED"
        self._client.set_terminated(self._id, status)


class Trackio:
    """A run of Trackio, whose name identifies it. Errors are warnings there."""

    url = ""

    def __init__(self, id: str, name: str, config: dict[str, Any]):
        import trackio  # pyright: ignore[reportMissingImports]

        self._image = trackio.Image
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{name}-{id}",
            config=config,
            resume="allow",
            embed=False,
        )

    def metrics(self, step: int, **metrics: float) -> None:
        self._run.log(metrics, step=step)

    def checkpoint(self, step: int, checkpoint: str) -> None:
        self._run.log({"checkpoint": checkpoint}, step=step)

    def image(self, step: int, **paths: str) -> None:
        self._run.log({k: self._image(path) for k, path in paths.items()}, step=step)

    def close(self, is_complete: bool) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[str, str, dict[str, Any]], Tracker]] = {
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


def main() -> NoReturn:
    # The training process decides when to end; it closes the pipe.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)  # for the libraries, which print
    os.dup2(null, 1)
    os.dup2(null, 2)

    def report(text: str) -> None:
        os.write(stderr, f"config.trackers: {text}\n".encode())

    start = Start(**json.loads(sys.stdin.readline()))
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        """Queues the messages, and limits the time that remains after the last."""
        for line in sys.stdin:
            if line.endswith("\n"):
                messages.put(json.loads(line))
        messages.put({"is_complete": False})  # if the training process was killed
        time.sleep(start.close_secs)
        report(
            f"{start.tracker} did not accept all metrics within {start.close_secs:g} s;"
            " rerun the same command to send the rest"
        )
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    sender = Sender(start, report)
    warnings.showwarning = lambda message, *_: sender.warn(str(message))  # Trackio's
    sender.open()
    while sender.send(messages.get()):
        pass
    os._exit(0)  # handlers that libraries registered might wait for a server


if __name__ == "__main__":
    main()
