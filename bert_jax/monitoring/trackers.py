"""Sends the metrics of a run to Weights & Biases, MLflow or Trackio: config.trackers.

Each tracker has a process, which reads metrics.jsonl while the training process writes
it. The libraries run there because they print, register exit handlers and wait for
servers, wandb 0.31 without limit when the process exits.

They read their own environment variables, such as WANDB_API_KEY, WANDB_MODE,
MLFLOW_TRACKING_URI and TRACKIO_SPACE_ID. A config holds no key, and the text of an
error is not printed, because it may hold one.
"""

import collections
import contextlib
import importlib.util
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from bert_jax import small_files, storage
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.monitoring import writer

DIRECTORY = "trackers"  # in a workdir
PROJECT = "bert_jax"
POLL_SECS, RETRY_SECS = 3.0, 10.0
# The kernel kills the process of a tracker if a call of its library takes HANG_SECS, or
# if it does not end within CLOSE_SECS after the run.
HANG_SECS, CLOSE_SECS = 600, 30
EXIT_SECS = 5.0  # for the kernel to do so
MAX_LINES = 100  # that are sent before the state is saved
COMPLETE = b"complete\n"

# log(values, step, seconds since 1970); steps do not decrease.
Log = Callable[[dict[str, float], int, float], None]
# A tracked run: how to log, how to end it, when everything is sent, as complete or not,
# and its address or "".
Opened = tuple[Log, Callable[[bool], None], str]


def check_installed(names: Sequence[str]) -> None:
    """Raises ConfigError if a library is missing."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"config.trackers: {name} is not installed; run pip install {name}, or"
                " remove it from config.trackers"
            )


# ----------------------------------------------------------------- the training process


class Trackers:
    """The processes that send the metrics of a run to its trackers.

    A process gets the config as the first line of its standard input, and COMPLETE at
    the end of a complete run.
    """

    def __init__(self, names: Sequence[str], workdir: str, config: Mapping[str, Any]):
        """Starts the processes, which record the config."""
        # The processes import this package from the same place as this process.
        paths = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
        command = [sys.executable, "-m", __name__]
        self._processes = {
            name: subprocess.Popen(
                [*command, name, storage.absolute(workdir)],
                bufsize=0,
                env=os.environ | {"PYTHONPATH": paths},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the training process
            )
            for name in dict.fromkeys(names)
        }
        for process in self._processes.values():
            _write(process, json.dumps(config).encode() + b"\n")

    def end(self, is_complete: bool) -> None:
        """Waits until everything is sent, at most CLOSE_SECS + EXIT_SECS for all."""
        for process in self._processes.values():
            _write(process, COMPLETE if is_complete else b"\n")
        deadline = time.monotonic() + CLOSE_SECS + EXIT_SECS
        for name, process in self._processes.items():
            with process:  # closes the pipe
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
                )


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):  # the process has failed
        process.stdin.write(line)


# ---------------------------------------------------------------- the tracker's process


def main() -> None:
    """Runs the process of a tracker: its arguments are TRACKER and WORKDIR."""
    name, workdir = sys.argv[1:]
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

    # Unbuffered, so that `select` sees a line that follows the config.
    stdin = open(0, "rb", buffering=0)
    try:
        storage.make_directory(f"{workdir}/{DIRECTORY}")
        if not storage.is_remote(workdir):  # the process of a killed run may be sending
            lock = storage.open_own(f"{workdir}/{DIRECTORY}/{name}.lock", "a")
            while not storage.acquire(lock.fileno()):
                time.sleep(0.1)
        follow(name, workdir, json.loads(stdin.readline()), stdin, report)
    except Exception as error:
        report(describe(error))
        os._exit(1)
    os._exit(0)  # handlers that libraries registered might wait for a server


def follow(
    name: str,
    workdir: str,
    config: dict[str, Any],
    stdin: IO[bytes],
    report: Callable[[str], None],
) -> None:
    """Sends the metrics of a run until `stdin` has its end, despite errors."""
    sender, is_over, pause = None, False, 0.0
    while True:
        if is_over:
            time.sleep(pause)
        else:  # determined before the lines are read
            is_over = bool(select.select([stdin], [], [], pause)[0])
            signal.alarm(CLOSE_SECS if is_over else HANG_SECS)
        try:
            if sender is None:
                sender = Sender(name, workdir, config)
                report(sender.url)
            sender.send(0 if is_over else HANG_SECS)
        except Exception as error:
            report(f"{describe(error)}; training continues, and sending is repeated")
            pause = RETRY_SECS
        else:
            pause = POLL_SECS
            if is_over:
                return sender.close(stdin.readline() == COMPLETE)


class Sender:
    """Sends each line of metrics.jsonl once.

    A resumed run repeats steps, so a line is identified by its step and its number
    among the lines of the step. The state is the last one that was sent.
    """

    def __init__(self, name: str, workdir: str, config: dict[str, Any]):
        """Opens the tracked run of the workdir, or a new one."""
        self._is_buffered, self._workdir = name in BUFFERED, workdir
        self._read: storage.Stat | None = None  # of metrics.jsonl when all was sent
        self._file = os.path.join(workdir, DIRECTORY, f"{name}.json")
        if not storage.exists(self._file):
            self._save(secrets.token_hex(4), (0, 0))
        remedy = "remove it to start a new tracked run"
        state = small_files.read_json(self._file, remedy)
        self._id, self._last = state["id"], tuple(state["last_line"])
        run_name = os.path.basename(workdir)
        self._log, self._close, self.url = TRACKERS[name](self._id, run_name, config)

    def send(self, limit_secs: int) -> None:
        """Sends the new lines; after an error, call it again.

        The kernel kills this process if a line takes `limit_secs`; 0 changes no limit.
        """
        path = os.path.join(self._workdir, writer.METRICS_FILE)
        newest = storage.stat(path) if storage.exists(path) else None
        if newest == self._read:
            return
        counts: collections.Counter[int] = collections.Counter()  # of lines, by step
        try:
            for line in writer.read(self._workdir):
                step, at = line.pop("step"), line.pop("time", time.time())
                counts[step] += 1
                if (step, counts[step]) <= self._last:
                    continue
                if limit_secs:
                    signal.alarm(limit_secs)
                # Null is a value that was not finite.
                values = {k: v for k, v in line.items() if v is not None}
                self._log(values, step, at)
                self._last = step, counts[step]
                if counts.total() % MAX_LINES == 0:
                    self._save_sent()
        finally:
            self._save_sent()
        self._read = newest

    def close(self, is_complete: bool) -> None:
        self._close(is_complete)
        self._save(self._id, self._last)

    def _save_sent(self) -> None:
        if not self._is_buffered:
            self._save(self._id, self._last)

    def _save(self, id: str, last: tuple[int, ...]) -> None:
        state = {"id": id, "last_line": last}
        storage.write(self._file, (json.dumps(state) + "\n").encode())


def describe(error: Exception) -> str:
    """Returns the type of an error and its HTTP status; its text may hold a key."""
    if isinstance(error, CorruptError):  # of the state
        return str(error)
    sources = (error, getattr(error, "exc", None), error.__cause__, error.__context__)
    codes = (getattr(getattr(x, "response", None), "status_code", 0) for x in sources)
    status = next(filter(None, codes), 0)
    of_mlflow = getattr(error, "get_http_status_code", lambda: 500)()
    if of_mlflow != 500:  # the default, also without a server
        status = of_mlflow
    return type(error).__name__ + (f", HTTP {status}" if status else "")


# ------------------------------------------------------------------------ the libraries


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
    return _log(run), lambda ok: run.finish(0 if ok else 1), url


def open_trackio(id: str, name: str, config: dict[str, Any]) -> Opened:
    """Opens a run of Trackio, whose name identifies it."""
    import trackio  # pyright: ignore[reportMissingImports]

    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    run = trackio.init(
        project, name=f"{name}-{id}", config=config, resume="allow", embed=False
    )
    return _log(run), lambda _: run.finish(), ""


def _log(run: Any) -> Log:
    return lambda values, step, seconds: run.log(values, step=step)


def open_mlflow(id: str, name: str, config: dict[str, Any]) -> Opened:
    """Opens a run of MLflow, found by its tag when it is resumed."""
    # By default, a request is retried for minutes before it fails.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    import mlflow  # pyright: ignore[reportMissingImports]

    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    tag = f"tags.bert_jax_run = '{id}'"
    runs = mlflow.search_runs(filter_string=tag, output_format="list")
    run = mlflow.start_run(
        runs[0].info.run_id if runs else None, run_name=name, tags={"bert_jax_run": id}
    )
    # A parameter of MLflow cannot be changed, and has at most 6,000 characters.
    new = {k: str(v)[:6000] for k, v in config.items() if k not in run.data.params}
    mlflow.log_params(new, synchronous=True)

    def log(values: dict[str, float], step: int, seconds: float) -> None:
        at = int(seconds * 1000)
        mlflow.log_metrics(values, step, timestamp=at, synchronous=True)

    return log, lambda ok: mlflow.end_run("FINISHED" if ok else "KILLED"), ""


TRACKERS = {"wandb": open_wandb, "mlflow": open_mlflow, "trackio": open_trackio}
# Values may be lost until the tracked run is closed, so they are sent again if it was
# not. It ignores those that it has.
BUFFERED = ("wandb",)


if __name__ == "__main__":
    main()
