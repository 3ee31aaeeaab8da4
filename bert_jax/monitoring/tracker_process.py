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

from bert_jax import small_files, storage
from bert_jax.errors import ConfigError, CorruptError, StorageError

PROJECT = "bert_jax"
SAVE_SECS = 1.0  # the interval at which the last steps are saved
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
# A shorter value is no key: TOKENIZERS_PARALLELISM is often "false".
MIN_SECRET_LENGTH = 8


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
      is_buffered: whether values may be lost until `close` returns.
    """

    url: str
    is_buffered: bool

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
        self._has_failed = False
        self._tracker: Any = None
        self._sent: dict[str, int] = {}  # the last step of each value
        # Contents of the file. The values are replaced and not changed, so that
        # another thread can save them.
        self._state: dict[str, Any] = {}
        self._saved = self._state
        self._saving = threading.Lock()

    def open(self) -> None:
        """Opens the tracked run of the workdir, or a new one."""
        if not storage.is_remote(self._file):
            self._repeat(self._acquire)
        self._repeat(self._read)
        self._repeat(self._open_tracker)
        if self._tracker.url:
            self._report(f"{self._start.tracker}: {self._tracker.url}")

    def _acquire(self) -> None:
        self._lock = storage.open_own(self._file.removesuffix(".json") + ".lock", "a")
        # The process of a killed run may still be sending.
        while not storage.acquire(self._lock.fileno()):
            time.sleep(0.1)

    def _read(self) -> None:
        if storage.exists(self._file):
            remedy = "remove it to start a new tracked run"
            state = small_files.read_json(self._file, remedy)
            if not {"id", "last_steps"} <= state.keys():
                raise CorruptError(f"{self._file} has no id or last_steps; {remedy}")
        else:
            state = {"id": secrets.token_hex(4), "last_steps": {}}
            storage.write(self._file, _json(state))
        self._state = self._saved = state
        self._sent = state["last_steps"]

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
            self._commit()
            self.save()
            return False
        kind: str = message["kind"]
        step: int = message["step"]
        found: dict[str, Any] = message["values"]
        values = {k: v for k, v in found.items() if step > self._sent.get(k, 0)}
        if values:
            self._repeat(lambda: self._send(kind, step, values))
            self._sent = {**self._sent, **dict.fromkeys(values, step)}
            if not self._tracker.is_buffered:
                self._commit()
        return True

    def _send(self, kind: str, step: int, values: dict[str, Any]) -> None:
        with contextlib.ExitStack() as copies:
            if kind == "image":  # trackers read local files
                values = {
                    k: copies.enter_context(storage.local_copy(path))
                    for k, path in values.items()
                }
            getattr(self._tracker, kind)(step, **values)

    def _commit(self) -> None:
        self._state = {**self._state, "last_steps": self._sent}

    def save(self) -> None:
        """Saves the last steps if they have changed; any thread may call it."""
        with self._saving:
            state = self._state
            if state is not self._saved:
                with contextlib.suppress(OSError, StorageError, ConfigError):
                    storage.write(self._file, _json(state))
                    self._saved = state

    def _repeat(self, do: Callable[[], None]) -> None:
        """Calls do() until it succeeds; reports the first error in one line."""
        while True:
            try:
                do()
            except Exception as error:
                if not self._has_failed:
                    self._report(
                        f"{self._start.tracker} failed ({_describe(error)}); training"
                        " continues, and sending is retried every"
                        f" {self._start.retry_secs:g} s"
                    )
                self._has_failed = True
                time.sleep(self._start.retry_secs)
            else:
                self._has_failed = False
                return

    def show_warning(
        self, message: Warning | str, category: type, filename: str, *_: Any
    ) -> None:
        """Reports warnings of Trackio, which are errors; see `warnings.showwarning`.

        Other warnings, for example of deprecated functions, are not reported.
        """
        package = os.path.basename(os.path.dirname(filename))
        if category is UserWarning and package == "trackio":
            self._report(f"trackio: {without_secrets(str(message))}")


def _json(state: dict[str, Any]) -> bytes:
    return (json.dumps(state) + "\n").encode()


def _describe(error: Exception) -> str:
    return without_secrets(f"{type(error).__name__}: {error}")


def without_secrets(text: str) -> str:
    """Returns the start of a message in one line, without passwords and keys."""
    text = re.sub(r"//[^/@\s]*@", "//", text)  # user:password@ in a URL
    text = re.sub(r"\?\S*", "", text)  # the query of a URL
    for name, value in os.environ.items():
        if len(value) >= MIN_SECRET_LENGTH and SECRET.search(name):
            text = text.replace(value, "***")
    return " ".join(text.split())[:200]


class Wandb:
    """A run of Weights & Biases.

    With WANDB_MODE=offline, each call writes a directory of its own with the same run
    id; `wandb sync` uploads them in order as one run.

    `log` returns before a value is sent, and also before it is on disk. Values of steps
    that a server has are ignored.
    """

    is_buffered = True

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
        self.url = "" if self._run.offline else self._run.url or ""
        self._was_closed = False

    def metrics(self, step: int, **metrics: float) -> None:
        self._run.log(metrics, step=step)

    def checkpoint(self, step: int, checkpoint: str) -> None:
        self._run.summary["checkpoint"] = checkpoint

    def image(self, step: int, **paths: str) -> None:
        self._run.log({k: self._image(path) for k, path in paths.items()}, step=step)

    def close(self, is_complete: bool) -> None:
        if self._was_closed:  # `finish` does nothing in a second call
            raise RuntimeError("wandb could not finish the run")
        self._was_closed = True
        self._run.finish(exit_code=0 if is_complete else 1)


class Mlflow:
    """A run of MLflow, found by its tag when it is resumed."""

    TAG = "bert_jax_run"
    url = ""
    is_buffered = False

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
    is_buffered = False  # for half a second, or in Trackio's files without a server

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
    try:
        _run(start, report)
    except Exception as error:
        report(
            f"{start.tracker} failed ({_describe(error)}); training continues without"
            " it; rerun the same command to send the rest of the metrics"
        )
        os._exit(1)
    os._exit(0)  # handlers that libraries registered might wait for a server


def _run(start: Start, report: Callable[[str], None]) -> None:
    """Sends the messages from standard input."""
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    sender = Sender(start, report)

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
        sender.save()
        os._exit(1)

    def save() -> None:
        while True:
            time.sleep(SAVE_SECS)
            sender.save()

    warnings.showwarning = sender.show_warning
    for target in (read, save):
        threading.Thread(target=target, daemon=True).start()
    sender.open()
    while sender.send(messages.get()):
        pass


if __name__ == "__main__":
    main()
