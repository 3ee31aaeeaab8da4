"""Sends the metrics of a run to one tracker: Weights & Biases, MLflow or Trackio.

    python -m bert_jax.monitoring.tracker_process TRACKER WORKDIR PID

It reads metrics.jsonl while the training process PID writes it. The libraries run here,
not in the training process: they print, register exit handlers and wait for servers,
wandb 0.31 without limit when the process exits.

They read their own environment variables, such as WANDB_API_KEY, WANDB_MODE,
MLFLOW_TRACKING_URI and TRACKIO_SPACE_ID. A config holds no key, and the text of an
error is not printed, because it may hold one.
"""

import collections
import json
import os
import secrets
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bert_jax import small_files, storage
from bert_jax.errors import CorruptError
from bert_jax.monitoring import writer

DIRECTORY = "trackers"  # in a workdir
RUN_FILE = "run.json"  # there: status, checkpoint and config of the run
PROJECT = "bert_jax"
POLL_SECS, RETRY_SECS = 3.0, 10.0
MAX_LINES = 100  # that are sent before the state is saved
# The kernel kills this process if a call of a library takes HANG_SECS, or if it does
# not end within CLOSE_SECS after the run.
HANG_SECS, CLOSE_SECS = 600, 30

# log(values, step, seconds since 1970); the values are numbers, strings and paths of
# images, and steps do not decrease.
Log = Callable[[dict[str, Any], int, float], None]
# A tracked run: how to log, how to end it, when everything is sent, as complete or not,
# and its address or "".
Opened = tuple[Log, Callable[[bool], None], str]


def open_wandb(id: str, name: str, config: dict[str, Any]) -> Opened:
    """Opens a run of Weights & Biases, which ignores values of steps that it has.

    With WANDB_MODE=offline, each call writes a directory of its own with the same run
    id; `wandb sync` uploads them in order as one run.
    """
    import wandb  # pyright: ignore[reportMissingImports]

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        id=id,
        name=name,
        config=config,
        resume="allow",
        allow_val_change=True,
        # The URL of a git remote may hold a token.
        settings=wandb.Settings(console="off", silent=True, disable_git=True),
    )

    url = "" if run.offline else run.url or ""
    return _log(run, wandb.Image), lambda ok: run.finish(0 if ok else 1), url


def open_trackio(id: str, name: str, config: dict[str, Any]) -> Opened:
    """Opens a run of Trackio, whose name identifies it."""
    import trackio  # pyright: ignore[reportMissingImports]

    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    run = trackio.init(
        project, name=f"{name}-{id}", config=config, resume="allow", embed=False
    )
    return _log(run, trackio.Image), lambda _: run.finish(), ""


def _log(run: Any, image: Callable[[str], Any]) -> Log:
    def log(values: dict[str, Any], step: int, seconds: float) -> None:
        paths = {k: image(str(v)) for k, v in values.items() if isinstance(v, Path)}
        run.log(values | paths, step=step)

    return log


def open_mlflow(id: str, name: str, config: dict[str, Any]) -> Opened:
    """Opens a run of MLflow, found by its tag when it is resumed."""
    # By default, a request is retried for minutes before it fails.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    import mlflow  # pyright: ignore[reportMissingImports]

    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    tag = f"tags.bert_jax_run = '{id}'"
    found = mlflow.search_runs(filter_string=tag, output_format="list")
    run = mlflow.start_run(
        found[0].info.run_id if found else None,
        run_name=name,
        tags={"bert_jax_run": id},
    )
    # A parameter of MLflow cannot be changed, and has at most 6,000 characters.
    new = {k: str(v)[:6000] for k, v in config.items() if k not in run.data.params}
    mlflow.log_params(new, synchronous=True)

    def log(values: dict[str, Any], step: int, seconds: float) -> None:
        numbers = {}
        for key, value in values.items():
            if isinstance(value, Path):
                mlflow.log_artifact(str(value))
            elif isinstance(value, str):
                mlflow.set_tag(key, value)
            else:
                numbers[key] = value
        at = int(seconds * 1000)
        mlflow.log_metrics(numbers, step, timestamp=at, synchronous=True)

    return log, lambda ok: mlflow.end_run("FINISHED" if ok else "KILLED"), ""


TRACKERS = {"wandb": open_wandb, "mlflow": open_mlflow, "trackio": open_trackio}
# Values may be lost until the tracked run is closed, so they are sent again if it was
# not. It ignores those that it has.
BUFFERED = ("wandb",)


class Sender:
    """Sends each line of metrics.jsonl once.

    A resumed run repeats steps, so a line is identified by its step and its number
    among the lines of the step. The state is the last one that was sent.
    """

    def __init__(self, name: str, workdir: str, config: dict[str, Any]):
        """Opens the tracked run of the workdir, or a new one."""
        self._is_buffered, self._workdir = name in BUFFERED, workdir
        self._read, self._checkpoint = None, ""
        self._file = os.path.join(workdir, DIRECTORY, f"{name}.json")
        if not storage.exists(self._file):
            self._save(secrets.token_hex(4), (0, 0))
        remedy = "remove it to start a new tracked run"
        state = small_files.read_json(self._file, remedy)
        self._id, self._last = state["id"], tuple(state["last_line"])
        self._first = self._last
        run_name = os.path.basename(workdir)
        self._log, self._close, self.url = TRACKERS[name](self._id, run_name, config)

    def send(self, checkpoint: str) -> bool:
        """Sends new lines, and the newest checkpoint; after an error, call it again.

        Returns:
          Whether there are no more lines.
        """
        path = os.path.join(self._workdir, writer.METRICS_FILE)
        found = storage.stat(path) if storage.exists(path) else None
        lines = _numbered(writer.read(self._workdir)) if found != self._read else []
        new = [(place, line) for place, line in lines if place > self._last]
        for place, line in new[:MAX_LINES]:
            hidden = ("step", "time")  # null is a value that was not finite
            values = {
                k: v for k, v in line.items() if v is not None and k not in hidden
            }
            self._log(values, line["step"], line.get("time", time.time()))
            self._last = place
        if new and not self._is_buffered:
            self._save(self._id, self._last)
        if len(new) > MAX_LINES:
            return False
        self._read = found
        if checkpoint != self._checkpoint:
            self._log({"checkpoint": checkpoint}, self._last[0], time.time())
            self._checkpoint = checkpoint
        return True

    def close(self, is_complete: bool) -> None:
        """Sends the images of a complete run if any line was new, and ends it."""
        names = storage.names(self._workdir) if self._last > self._first else []
        for name in sorted(names) if is_complete else ():
            if name.endswith(".png"):
                with storage.local_copy(os.path.join(self._workdir, name)) as path:
                    image = {Path(name).stem: Path(path)}
                    self._log(image, self._last[0], time.time())
        self._close(is_complete)
        self._save(self._id, self._last)

    def _save(self, id: str, last: tuple[int, ...]) -> None:
        state = {"id": id, "last_line": last}
        storage.write(self._file, (json.dumps(state) + "\n").encode())


def _numbered(lines: list[dict[str, Any]]) -> Iterator[tuple[tuple[int, int], Any]]:
    """Yields ((step, n), line) for the n-th line of its step."""
    counts: collections.Counter[int] = collections.Counter()
    for line in lines:
        counts[line["step"]] += 1
        yield (line["step"], counts[line["step"]]), line


def follow(name: str, workdir: str, pid: int, report: Callable[[str], None]) -> None:
    """Sends the metrics of the run of the parent process `pid`, despite errors."""
    sender, has_ended, pause = None, False, 0.0
    while True:
        time.sleep(pause)
        try:
            run = json.loads(storage.read(os.path.join(workdir, DIRECTORY, RUN_FILE)))
            if not has_ended:  # determined before the lines are read
                has_ended = run["status"] != "running" or os.getppid() != pid
                signal.alarm(CLOSE_SECS if has_ended else HANG_SECS)
            if sender is None:
                sender = Sender(name, workdir, run["config"])
                report(sender.url)
            pause = POLL_SECS if sender.send(run["checkpoint"]) else 0.0
        except Exception as error:
            report(f"{describe(error)}; training continues, and sending is repeated")
            pause = RETRY_SECS
        else:
            if has_ended and pause:
                return sender.close(run["status"] == "complete")


def describe(error: Exception) -> str:
    """Returns the type of an error and its HTTP status; its text may hold a key."""
    if isinstance(error, CorruptError):  # of the state
        return str(error)
    sources = (error, getattr(error, "exc", None), error.__cause__, error.__context__)
    found = (getattr(getattr(x, "response", None), "status_code", 0) for x in sources)
    status = next(filter(None, found), 0)
    of_mlflow = getattr(error, "get_http_status_code", lambda: 500)()
    if of_mlflow != 500:  # the default, also without a server
        status = of_mlflow
    return type(error).__name__ + (f", HTTP {status}" if status else "")


def main() -> None:
    name, workdir, pid = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM):  # are for the training process
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(HANG_SECS)
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # the libraries print
    reported = {""}

    def report(text: str) -> None:
        if text not in reported:
            os.write(stderr, f"config.trackers: {name}: {text}\n".encode())
        reported.add(text)

    def show_warning(_: object, category: type, filename: str, *rest: object) -> None:
        if category is UserWarning and Path(filename).parent.name == "trackio":
            report("metrics may be lost (UserWarning)")  # it raises no errors

    warnings.showwarning = show_warning
    try:
        if not storage.is_remote(workdir):  # the process of a killed run may be sending
            lock = storage.open_own(f"{workdir}/{DIRECTORY}/{name}.lock", "a")
            while not storage.acquire(lock.fileno()):
                time.sleep(0.1)
        follow(name, workdir, int(pid), report)
    except Exception as error:
        report(describe(error))
        os._exit(1)
    os._exit(0)  # handlers that libraries registered might wait for a server


if __name__ == "__main__":
    main()
