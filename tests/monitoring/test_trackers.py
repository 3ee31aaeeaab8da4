"""Tests of bert_jax.monitoring.trackers.

One runs the real libraries; it is skipped without requirements-trackers.txt.
"""

import fcntl
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable

import numpy as np
import pytest

from bert_jax import storage
from bert_jax.errors import ConfigError
from bert_jax.monitoring import trackers, writer
from bert_jax.monitoring.trackers import Trackers, describe, follow
from tests.commands import run, run_code, small_run, start, write_text
from tests.runs import lines, step_secs

NAMES = ("wandb", "mlflow", "trackio")
HAS_ALL = all(importlib.util.find_spec(name) for name in NAMES)
needs_trackers = pytest.mark.skipif(
    not HAS_ALL, reason="requirements-trackers.txt is not installed"
)


# -------------------------------------------------------------------- lines and errors


class Memory:
    """A tracker that keeps what it is sent, and raises the errors in `errors`.

    Attributes:
      calls: the (step, name, value) of each call of the process, a list for each.
      errors: by the number of the value, counted from 1.
    """

    def __init__(self):
        self.ids, self.calls, self.errors, self.count = [], [], {}, 0
        self.ended, self.seconds = [], []

    def open(self, id, name, config):
        self.ids.append(id)
        self.calls.append([])
        return self.log, self.close, "https://host/run"

    def log(self, values, step, seconds):
        self.count += 1
        if self.count in self.errors:
            raise self.errors[self.count]
        self.seconds.append(seconds)
        self.calls[-1] += [(step, name, value) for name, value in values.items()]

    def close(self, is_complete):
        self.ended.append(is_complete)


@pytest.fixture
def memory(monkeypatch):
    memory = Memory()
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(trackers.TRACKERS, name, memory.open)
    monkeypatch.setattr(trackers, "RETRY_SECS", 0.01)
    monkeypatch.setattr(signal, "alarm", lambda secs: 0)
    return memory


def write(workdir, *lines):
    """Writes metrics.jsonl and makes the directory of the states."""
    text = "".join(json.dumps({"step": step} | rest) + "\n" for step, rest in lines)
    storage.write(f"{workdir}/metrics.jsonl", text.encode())
    storage.make_directory(f"{workdir}/trackers")


def call(workdir, name="mlflow", is_complete=False, report=None):
    """Runs the process of a tracker until the end of the run; returns its reports."""
    reports = []
    reader, writer = os.pipe()
    os.write(writer, b"complete\n" if is_complete else b"\n")
    os.close(writer)
    with open(reader, "rb", buffering=0) as stdin:
        follow(name, str(workdir), {"seed": 1}, stdin, report or reports.append)
    return reports


def last_line(workdir, name="mlflow"):
    return json.loads(storage.read(f"{workdir}/trackers/{name}.json"))["last_line"]


A, B, C, D = ({"loss": 4.0}, {"loss": 3.0}, {"eval_loss": 3.5}, {"loss": 2.0})


def test_each_line_is_sent_once_although_a_resumed_run_repeats_steps(tmp_path, memory):
    timed = A | {"mfu": None, "time": 5e8}  # null is not sent
    write(tmp_path, (10, timed), (20, B))
    call(tmp_path)
    assert memory.seconds[0] == 5e8
    # It was interrupted before the evaluation at step 20.
    write(tmp_path, (10, A), (20, B), (20, C), (30, D))
    call(tmp_path)
    # A rollback to step 10 dropped lines, and the steps are repeated.
    write(tmp_path, (10, A), (20, B))
    call(tmp_path)
    write(tmp_path, (10, A), (20, B), (20, C), (30, D), (40, A))
    call(tmp_path, is_complete=True)
    assert memory.calls == [
        [(10, "loss", 4.0), (20, "loss", 3.0)],
        [(20, "eval_loss", 3.5), (30, "loss", 2.0)],
        [],
        [(40, "loss", 4.0)],
    ]
    assert len(set(memory.ids)) == 1 and memory.ended == [False, False, False, True]


def test_after_an_error_sending_continues_where_it_was_raised(tmp_path, memory):
    memory.errors = {2: ConnectionError("a"), 3: ConnectionError("b"), 5: KeyError("c")}
    write(tmp_path, (10, A), (20, B), (30, D))
    reports = call(tmp_path)
    assert memory.calls == [[(10, "loss", 4.0), (20, "loss", 3.0), (30, "loss", 2.0)]]
    assert last_line(tmp_path) == [30, 1]
    rest = "; training continues, and sending is repeated"
    errors = [f"ConnectionError{rest}", f"ConnectionError{rest}", f"KeyError{rest}"]
    assert reports == ["https://host/run", *errors]  # main() prints each text once


def test_what_wandb_buffers_is_sent_again_unless_it_was_closed(tmp_path, memory):
    def fail(is_complete):
        raise ConnectionResetError

    write(tmp_path, (10, A))
    memory.close = fail
    with pytest.raises(ConnectionResetError):
        call(tmp_path, "wandb")
    assert last_line(tmp_path, "wandb") == [0, 0]
    del memory.close
    call(tmp_path, "wandb")
    call(tmp_path, "wandb")
    assert memory.calls == [[(10, "loss", 4.0)], [(10, "loss", 4.0)], []]
    assert last_line(tmp_path, "wandb") == [10, 1]


def test_a_corrupt_state_is_reported_and_can_be_removed_during_the_run(
    tmp_path, memory
):
    write(tmp_path, (10, A))
    path = tmp_path / "trackers/mlflow.json"
    path.write_text("{")
    reports = []

    def report(text):
        reports.append(text)
        if len(reports) == 1:
            path.unlink()

    call(tmp_path, report=report)
    assert reports[0].startswith(f"{path} is not a JSON object; remove it to start a")
    assert memory.calls == [[(10, "loss", 4.0)]]


def test_a_tracked_run_of_a_workdir_in_a_bucket(memory, bucket, monkeypatch):
    write("gs://b/run", (10, A), (20, B))
    call("gs://b/run")
    assert last_line("gs://b/run") == [20, 1]
    call("gs://b/run")
    assert memory.calls[1] == [] and len(set(memory.ids)) == 1


class HttpError(Exception):
    def __init__(self, text, status):
        super().__init__(text)
        self.response = types.SimpleNamespace(status_code=status, text=text)


def wrapped(error, **attributes):
    outer = RuntimeError(f"failed: {error}")
    outer.__cause__ = error
    for name, value in attributes.items():
        setattr(outer, name, value)
    return outer


def test_only_the_type_and_the_status_of_an_error_are_reported():
    text = "https://u:hunter2@h/x?key=hunter2\nAuthorization: Basic hunter2"
    error = HttpError(text, 401)
    assert describe(ConnectionError(text)) == "ConnectionError"
    assert describe(error) == "HttpError, HTTP 401"
    assert describe(wrapped(error)) == "RuntimeError, HTTP 401"
    assert describe(wrapped(KeyError(), exc=error)) == "RuntimeError, HTTP 401"
    for status, shown in ((403, ", HTTP 403"), (500, "")):
        of_mlflow = wrapped(KeyError(text), get_http_status_code=lambda s=status: s)
        assert describe(of_mlflow) == f"RuntimeError{shown}"


def test_a_tracker_that_is_not_installed_is_an_error(monkeypatch):
    trackers.check_installed([])
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigError, match="wandb is not installed; run pip install wa"):
        trackers.check_installed(["wandb"])


# ----------------------------------------------------------------------- the processes

PATCHED = """
import sys, time, ctypes
from bert_jax.monitoring import trackers as t
t.CLOSE_SECS, t.HANG_SECS, t.POLL_SECS, t.RETRY_SECS = 3, {hang}, 0.1, 0.1
def open_it(id, name, config): {body}
t.TRACKERS["mlflow"] = open_it
t.main()
"""
HANG = "ctypes.PyDLL(None).sleep(10_000)"  # a call that holds the interpreter's lock
FAIL = "raise KeyError('hunter2secret')"


def start_tracker(workdir, body, hang_secs):
    code = PATCHED.format(body=body, hang=hang_secs)
    command = [sys.executable, "-c", code, "mlflow", str(workdir)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdin.write("{}\n")
    process.stdin.flush()
    return process


@pytest.mark.parametrize("hang_secs, is_training", [(2, True), (600, False)])
def test_a_hung_library_ends_the_process_also_when_training_was_killed(
    tmp_path, hang_secs, is_training
):
    write(tmp_path, (10, A))
    process = start_tracker(tmp_path, HANG, hang_secs)
    if not is_training:
        process.stdin.close()
    assert process.wait(60) == -signal.SIGALRM
    assert process.stderr.read() == ""


def test_an_error_is_printed_once_and_without_its_text(tmp_path):
    write(tmp_path, (10, A))
    process = start_tracker(tmp_path, FAIL, 600)
    assert process.communicate(timeout=60)[1] == (
        "config.trackers: mlflow: KeyError; training continues, and sending is"
        " repeated\n"
    )


def test_a_process_waits_for_that_of_a_killed_run(tmp_path):
    write(tmp_path, (10, A))
    with open(tmp_path / "trackers/mlflow.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start_tracker(tmp_path, "return print, print, ''", 600)
        process.stdin.close()
        time.sleep(4.0)  # longer than CLOSE_SECS
        assert process.poll() is None
        assert not (tmp_path / "trackers/mlflow.json").exists()
    assert process.wait(60) == 0 and last_line(tmp_path) == [10, 1]


NOT_SENT = (
    "config.trackers: {} did not get all metrics; rerun the same command to send the"
    " rest\n"
)
# A library whose `log` holds the interpreter's lock for ever.
HUNG = """
import ctypes, pathlib, types

Settings = dict

def log(values, step):
    pathlib.Path("{}").touch()
    ctypes.PyDLL(None).sleep(10_000)

def init(**_):
    return types.SimpleNamespace(offline=True, log=log)
"""


def test_a_tracker_that_hangs_delays_only_the_end(tmp_path, monkeypatch, capfd):
    (tmp_path / "wandb.py").write_text(HUNG.format(tmp_path / "hung"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(trackers, "CLOSE_SECS", 1.0)
    monkeypatch.setattr(trackers, "EXIT_SECS", 0.0)
    opened = Trackers(["wandb"], str(tmp_path), {})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 1, "loss": 1.0}\n')
    wait_for((tmp_path / "hung").exists)
    (process,) = opened._processes.values()
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    monitored = writer.MetricsWriter(str(tmp_path), 1)
    for step in range(2, 2000):  # more than a pipe holds
        monitored.write(step, {"loss": 1.0})
    opened.end(is_complete=True)
    assert time.monotonic() - began < 30
    assert process.returncode == -signal.SIGKILL
    assert capfd.readouterr().err == NOT_SENT.format("wandb")


def test_a_run_that_ends_before_its_tracker_has_started_is_sent(tmp_path, monkeypatch):
    body = "import types\nSettings = dict\ndef init(**_):"
    body += " return types.SimpleNamespace(offline=True, finish=lambda code: None)"
    (tmp_path / "wandb.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    opened = Trackers(["wandb"], str(tmp_path), {})
    opened.end(is_complete=True)
    assert [process.returncode for process in opened._processes.values()] == [0]


def test_trackers_that_fail_are_ended_at_the_same_time(tmp_path, monkeypatch, capfd):
    (tmp_path / trackers.DIRECTORY).write_text("a file")
    monkeypatch.setattr(trackers, "CLOSE_SECS", 2.0)
    monkeypatch.setattr(trackers, "EXIT_SECS", 0.0)
    names = ("x", "y", "z")
    opened = Trackers(names, str(tmp_path), {})
    began = time.monotonic()
    opened.end(is_complete=True)
    assert time.monotonic() - began < 5.5
    error = capfd.readouterr().err
    assert all(NOT_SENT.format(name) in error for name in names)


def wait_for(is_there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ------------------------------------------------------------------- the real libraries

CANARY = "canary-5f0e71c2"
SECRETS = ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN", "TRACKIO_WRITE_TOKEN")


def stores(directory: pathlib.Path) -> dict[str, str]:
    """Returns variables that make each tracker write to files in a directory."""
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(directory),
        "WANDB_CACHE_DIR": str(directory / "cache"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": str(directory / "mlruns"),
        "TRACKIO_DIR": str(directory / "trackio"),
    }


# What MLflow's client and Trackio's storage return, as JSON.
READER = """
import json, sys
import trackio
from mlflow.tracking import MlflowClient
from trackio.sqlite_storage import SQLiteStorage

client = MlflowClient()
experiment = client.get_experiment_by_name("bert_jax").experiment_id
(run,) = client.search_runs([experiment])
id = run.info.run_id
rows = [
    {"step": m.step, name: m.value}
    for name in run.data.metrics
    for m in client.get_metric_history(id, name)
]
mlflow = [rows, dict(run.data.params), run.info.status]

(run,) = trackio.Api().runs("bert_jax")
rows = SQLiteStorage.get_logs("bert_jax", run.name)
trackio = [rows, run.config, ""]
print(json.dumps({"mlflow": mlflow, "trackio": trackio}))
"""


def read_stores(directory: pathlib.Path) -> dict[str, list]:
    """Returns the rows, the config and the status of the run in each store."""
    text = run_code(READER, **stores(directory)).stdout
    return json.loads(text) | {"wandb": of_wandb(directory)}


def of_wandb(directory: pathlib.Path) -> list:
    """Reads the directories in the order in which `wandb sync` uploads them."""
    rows, config, ids = [], {}, set()
    for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", path]
        text = subprocess.run(command, capture_output=True, check=True).stdout
        records = [json.loads(line) for line in text.splitlines()]
        rows += [r["history"]["item"] for r in records if r["type"] == "history"]
        for record in records:
            config |= record.get("run", {}).get("config", {}).get("update", {})
        ids.add(path.name)
    assert len(ids) == 1
    status = records[-1]["exit"].get("exit_code", 0)
    rows = [row | {"step": row["_step"]} for row in rows]
    return [rows, config, status]


def curve(rows: list[dict], name: str) -> list[tuple[int, float]]:
    return sorted((row["step"], row[name]) for row in rows if name in row)


@needs_trackers
@pytest.mark.slow
def test_a_killed_and_resumed_run_is_one_tracked_run_with_each_step_once(tmp_path):
    text, store = tmp_path / "text", tmp_path / "store"
    text.mkdir(), store.mkdir()
    write_text(text / "documents.txt")
    config = small_run(text, **{"phases[0].num_steps": 120})
    tracked = tmp_path / "tracked"
    arguments = [*config, f"--workdir={tracked}", f"--config.trackers={NAMES}"]
    arguments += ["--config.profile=(12,4)"]
    env = stores(store) | {name: CANARY for name in SECRETS}
    process = start("bert_jax.train", *arguments, **env)
    # The checkpoint of step 30 is complete, and later steps have been logged.
    while not (tracked / "checkpoints/30").exists() or lines(tracked)[-1]["step"] < 50:
        time.sleep(0.005)
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    stdout, stderr = process.communicate()
    assert process.returncode == -signal.SIGKILL
    result = run("bert_jax.train", *arguments, **env)
    assert result.returncode == 0, result.stderr
    assert "resuming at step" in result.stdout
    assert "no trace, because step 12 was taken" in result.stdout
    assert CANARY not in stdout + stderr + result.stdout + result.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]

    (trace,) = tracked.glob("plugins/profile/*/*.xplane.pb")
    assert list(step_secs(trace)) == [12, 13, 14, 15]
    found = read_stores(store)
    statuses = {"wandb": 0, "mlflow": "FINISHED", "trackio": ""}
    for name in NAMES:
        rows, config, status = found[name]
        for metric in ("loss", "masked_lm_accuracy", "eval_loss", "learning_rate"):
            expected = curve(lines(tracked), metric)
            assert len(expected) == (4 if metric == "eval_loss" else 12)
            steps, values = zip(*curve(rows, metric), strict=True)
            assert list(steps) == [step for step, _ in expected], (name, metric)
            np.testing.assert_allclose(values, [v for _, v in expected], rtol=1e-6)
        assert len(curve(rows, "tokens_per_sec")) == 12
        assert str(config["model.hidden_size"]) == "32"
        assert str(config["phases.0.num_steps"]) == "120"
        assert int(config["run.num_parameters"]) > 20_000
        assert status == statuses[name]
