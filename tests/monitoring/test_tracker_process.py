"""Tests of bert_jax.monitoring.tracker_process.

tests/monitoring/test_trackers.py runs it with the libraries of the trackers.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import types

import pytest

from bert_jax import storage
from bert_jax.monitoring import tracker_process
from bert_jax.monitoring.tracker_process import describe, follow


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
        monkeypatch.setitem(tracker_process.TRACKERS, name, memory.open)
    monkeypatch.setattr(tracker_process, "RETRY_SECS", 0.01)
    monkeypatch.setattr(signal, "alarm", lambda secs: 0)
    return memory


def write(workdir, *lines, status="stopped", checkpoint=""):
    """Writes the files of a run in a workdir: (step, metrics) for each line."""
    text = "".join(json.dumps({"step": step} | rest) + "\n" for step, rest in lines)
    storage.write(f"{workdir}/metrics.jsonl", text.encode())
    storage.make_directory(f"{workdir}/trackers")
    run = {"status": status, "checkpoint": checkpoint, "config": {"seed": 1}}
    storage.write(f"{workdir}/trackers/run.json", json.dumps(run).encode())


def call(workdir, name="mlflow"):
    """Runs the process of a tracker until the end of the run; returns its reports."""
    reports = []
    follow(name, str(workdir), os.getppid(), reports.append)
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
    write(tmp_path, (10, A), (20, B), (20, C), (30, D), (40, A), status="complete")
    call(tmp_path)
    assert memory.calls == [
        [(10, "loss", 4.0), (20, "loss", 3.0)],
        [(20, "eval_loss", 3.5), (30, "loss", 2.0)],
        [],
        [(40, "loss", 4.0)],
    ]
    assert len(set(memory.ids)) == 1 and memory.ended == [False, False, False, True]


def test_the_newest_checkpoint_and_the_images_are_sent(tmp_path, memory):
    image = tmp_path / "loss_curves.png"
    write(tmp_path, (10, A), checkpoint="w/10")
    image.write_bytes(b"")
    call(tmp_path)
    write(tmp_path, (10, A), (20, B), status="complete", checkpoint="w/20")
    call(tmp_path)
    call(tmp_path)  # the run was complete
    at_10 = [(10, "loss", 4.0), (10, "checkpoint", "w/10")]
    at_20 = [(20, "loss", 3.0), (20, "checkpoint", "w/20"), (20, "loss_curves", image)]
    assert memory.calls == [at_10, at_20, [(20, "checkpoint", "w/20")]]


def test_after_an_error_sending_continues_where_it_was_raised(tmp_path, memory):
    memory.errors = {2: ConnectionError("a"), 3: ConnectionError("b"), 5: KeyError("c")}
    write(tmp_path, (10, A), (20, B), (30, D))
    reports = call(tmp_path)
    assert memory.calls == [[(10, "loss", 4.0), (20, "loss", 3.0), (30, "loss", 2.0)]]
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

    follow("mlflow", str(tmp_path), 0, report)
    assert reports[0].startswith(f"{path} is not a JSON object; remove it to start a")
    assert memory.calls == [[(10, "loss", 4.0)]]


def test_a_tracked_run_of_a_workdir_in_a_bucket(memory, bucket):
    write("gs://b/run", (10, A), (20, B), status="complete")
    storage.write("gs://b/run/loss_curves.png", b"an image")
    images, log = [], memory.log

    def read(values, step, seconds):
        if "loss_curves" in values:
            images.append(values["loss_curves"].read_bytes())
        log(values, step, seconds)

    memory.log = read
    call("gs://b/run")
    assert images == [b"an image"] and last_line("gs://b/run") == [20, 1]
    call("gs://b/run")
    assert memory.calls[1] == [] and len(set(memory.ids)) == 1


# ----------------------------------------------------------------------------- errors


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


# ------------------------------------------------------------------------- the process

PATCHED = """
import sys, time, ctypes
from bert_jax.monitoring import tracker_process as t
t.CLOSE_SECS, t.HANG_SECS, t.POLL_SECS, t.RETRY_SECS = 1, {hang}, 0.1, 0.1
def open_it(id, name, config): {body}
t.TRACKERS["mlflow"] = open_it
t.main()
"""
HANG = "ctypes.PyDLL(None).sleep(10_000)"  # a call that holds the interpreter's lock
FAIL = "raise KeyError('hunter2secret')"


def start(workdir, body, hang_secs, pid=0):
    code = PATCHED.format(body=body, hang=hang_secs)
    command = [sys.executable, "-c", code, "mlflow", str(workdir), str(pid)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("hang_secs, is_training", [(2, True), (600, False)])
def test_a_hung_library_ends_the_process_also_when_training_was_killed(
    tmp_path, hang_secs, is_training
):
    write(tmp_path, (10, A), status="running")
    process = start(tmp_path, HANG, hang_secs, os.getpid() if is_training else 0)
    assert process.communicate(timeout=60) == (None, "")
    assert process.returncode == -signal.SIGALRM


def test_an_error_is_printed_once_and_without_its_text(tmp_path):
    write(tmp_path, (10, A))
    process = start(tmp_path, FAIL, 600)
    assert process.communicate(timeout=60)[1] == (
        "config.trackers: mlflow: KeyError; training continues, and sending is"
        " repeated\n"
    )


def test_a_process_waits_for_that_of_a_killed_run(tmp_path):
    write(tmp_path, (10, A))
    body = "return print, print, ''"
    with open(tmp_path / "trackers/mlflow.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start(tmp_path, body, 600)
        time.sleep(2.0)
        assert process.poll() is None
        assert not (tmp_path / "trackers/mlflow.json").exists()
    assert process.wait(60) == 0 and last_line(tmp_path) == [10, 1]
