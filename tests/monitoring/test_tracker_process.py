"""Tests of bert_jax.monitoring.tracker_process.

tests/monitoring/test_trackers.py runs it with the libraries of the trackers.
"""

import dataclasses
import json
import subprocess
import sys
import types
import warnings

import pytest

from bert_jax import storage
from bert_jax.monitoring import tracker_process
from bert_jax.monitoring.tracker_process import Sender, Start, without_secrets
from tests.fake_bucket import Bucket


class Memory:
    """A tracker that keeps what it is sent, and fails at the calls in `failing`."""

    opened: list["Memory"] = []
    failing: set[int] = set()
    calls = 0
    url = ""
    is_buffered = False

    def __init__(self, id, name, config):
        self.id, self.sent, self.is_complete = id, [], None
        Memory.opened.append(self)

    def _send(self, step, values):
        Memory.calls += 1
        if Memory.calls in Memory.failing:
            raise ConnectionError("cannot reach https://me:hunter2@host/api?key=1")
        self.sent += [(step, name, value) for name, value in values.items()]

    def metrics(self, step, **metrics):
        self._send(step, metrics)

    def checkpoint(self, step, checkpoint):
        self._send(step, {"checkpoint": checkpoint})

    def image(self, step, **paths):
        self._send(step, paths)

    def close(self, is_complete):
        self.is_complete = is_complete


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setitem(tracker_process.TRACKERS, "wandb", Memory)
    Memory.opened, Memory.failing, Memory.calls = [], set(), 0
    return Memory


def metrics(step, **values):
    return {"kind": "metrics", "step": step, "values": values}


def send(directory, *messages):
    """Sends messages as one call of a run does; returns its tracker and reports."""
    reports = []
    sender = Sender(make_start(directory), reports.append)
    sender.open()
    assert all(sender.send(message) for message in messages)
    assert not sender.send({"is_complete": True})
    return Memory.opened[-1], reports


def make_start(directory):
    start = Start(
        tracker="wandb",
        state_file=f"{directory}/wandb.json",
        name="run",
        config={},
        retry_secs=0.01,
        close_secs=1.0,
    )
    assert json.loads(json.dumps(dataclasses.asdict(start))) == vars(start)
    return start


def saved_steps(directory):
    return json.loads(storage.read(f"{directory}/wandb.json"))["last_steps"]


def test_values_of_repeated_steps_are_sent_once_and_the_run_stays_the_same(
    tmp_path, memory
):
    first, _ = send(
        tmp_path,
        metrics(10, loss=3.0),
        metrics(20, loss=2.0),
        metrics(20, eval_loss=2.5, loss=9.0),  # the loss of this step is sent
        {"kind": "checkpoint", "step": 20, "values": {"checkpoint": "a/20"}},
    )
    second, _ = send(
        tmp_path,
        metrics(10, loss=3.0),
        metrics(20, eval_loss=2.5),
        metrics(30, loss=1.0),
        {"kind": "checkpoint", "step": 20, "values": {"checkpoint": "a/20"}},
        {"kind": "image", "step": 30, "values": {"curves": "a/curves.png"}},
    )
    assert first.id == second.id
    assert [*first.sent, *second.sent] == [
        (10, "loss", 3.0),
        (20, "loss", 2.0),
        (20, "eval_loss", 2.5),
        (20, "checkpoint", "a/20"),
        (30, "loss", 1.0),
        (30, "curves", "a/curves.png"),
    ]
    assert first.is_complete and second.is_complete


FAILED = (
    "wandb failed (ConnectionError: cannot reach https://host/api); training"
    " continues, and sending is retried every 0.01 s"
)


def test_a_failed_message_is_repeated_and_reported_once(tmp_path, memory):
    memory.failing = {2, 3}
    tracker, reports = send(
        tmp_path, *(metrics(step, loss=float(step)) for step in (1, 2, 3))
    )
    assert [step for step, _, _ in tracker.sent] == [1, 2, 3]
    assert reports == [FAILED]


def test_a_failure_after_a_success_is_reported_again(tmp_path, memory):
    memory.failing = {1, 3, 4}
    assert send(tmp_path, metrics(1, loss=1.0), metrics(2, loss=1.0))[1] == 2 * [FAILED]


def test_last_steps_are_saved_at_intervals_and_when_the_run_is_closed(tmp_path, memory):
    sender = Sender(make_start(tmp_path), print)
    sender.open()
    sender.send(metrics(1, loss=3.0))
    assert saved_steps(tmp_path) == {}
    sender.save()
    assert saved_steps(tmp_path) == {"loss": 1}
    sender.send(metrics(2, loss=3.0))
    sender.send({"is_complete": False})
    assert saved_steps(tmp_path) == {"loss": 2}


def test_what_a_tracker_buffers_is_sent_again_unless_it_was_closed(
    tmp_path, memory, monkeypatch
):
    monkeypatch.setattr(memory, "is_buffered", True)
    sender = Sender(make_start(tmp_path), print)
    sender.open()
    sender.send(metrics(1, loss=3.0))
    sender.send(metrics(1, loss=3.0))  # skipped
    sender.save()
    assert saved_steps(tmp_path) == {}
    sender._lock.close()  # the process is killed
    second, _ = send(tmp_path, metrics(1, loss=3.0))
    third, _ = send(tmp_path, metrics(1, loss=3.0))
    sent = [tracker.sent for tracker in memory.opened]
    assert sent == [[(1, "loss", 3.0)], [(1, "loss", 3.0)], []]
    assert saved_steps(tmp_path) == {"loss": 1}


def test_a_run_of_wandb_that_failed_to_finish_does_not_count_as_sent(monkeypatch):
    class Run:
        offline, is_finished = True, False

        def finish(self, exit_code):  # as in wandb 0.31
            if not self.is_finished:
                self.is_finished = True
                raise ConnectionResetError("Connection lost")

    library = types.SimpleNamespace(Settings=dict, Image=None, init=lambda **_: Run())
    monkeypatch.setitem(sys.modules, "wandb", library)
    tracker = tracker_process.Wandb("id", "name", {})
    for error in (ConnectionResetError, RuntimeError, RuntimeError):
        with pytest.raises(error):
            tracker.close(is_complete=True)


def test_a_corrupt_file_is_reported_and_can_be_removed_during_the_run(tmp_path, memory):
    path = tmp_path / "wandb.json"
    for content in ("{", "[]", '{"id": "a"}'):
        path.write_text(content)
        reports = []

        def report(text, reports=reports):
            reports.append(text)
            path.unlink()

        sender = Sender(make_start(tmp_path), report)
        sender.open()
        sender._lock.close()
        (text,) = reports
        assert text.startswith(f"wandb failed (CorruptError: {path} ")
        assert "remove it to start a new tracked run" in text
    assert saved_steps(tmp_path) == {}


def test_a_lock_that_cannot_be_written_is_reported(tmp_path, memory):
    path = tmp_path / "wandb.lock"
    path.mkdir()
    reports = []

    def report(text):
        reports.append(text)
        path.rmdir()

    Sender(make_start(tmp_path), report).open()
    (text,) = reports
    assert text.startswith("wandb failed (IsADirectoryError: ") and str(path) in text


def test_a_tracked_run_of_a_workdir_in_a_bucket(memory, monkeypatch):
    with Bucket("b") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        sender = Sender(
            make_start("gs://b/run/trackers"),
            # The image is missing until this is reported.
            lambda _: storage.write("gs://b/run/curves.png", b"an image"),
        )
        images = []

        def read(self, step, curves):
            with open(curves, "rb") as file:
                images.append(file.read())

        monkeypatch.setattr(memory, "image", read)
        sender.open()
        for step in range(1, 30):
            sender.send(metrics(step, loss=1.0))
        path = {"curves": "gs://b/run/curves.png"}
        sender.send({"kind": "image", "step": 29, "values": path})
        sender.send({"is_complete": True})
        assert images == [b"an image"]
        assert saved_steps("gs://b/run/trackers") == {"loss": 29, "curves": 29}
        uploads = [r for r in bucket.requests if "/upload/" in r]
        assert len(uploads) == 3  # the id, the image and the last steps
        second, _ = send("gs://b/run/trackers", metrics(29, loss=1.0))
        assert second.id == memory.opened[0].id and not second.sent


def test_only_warnings_of_trackio_are_reported(tmp_path, memory, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    reports = []
    sender = Sender(make_start(tmp_path), reports.append)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", sender.show_warning)
        path = f"{sys.prefix}/trackio/utils.py"
        for category, file in (
            (FutureWarning, "mlflow/store.py"),
            (UserWarning, "mlflow/store.py"),
            (DeprecationWarning, path),
        ):
            warnings.warn_explicit("deprecated", category, file, 1)
        assert not reports
        text = "batch lost, hf_0123456789\nis wrong"
        warnings.warn_explicit(text, UserWarning, path, 1)
    assert reports == ["trackio: batch lost, *** is wrong"]


def test_an_error_that_is_not_repeated_is_reported_in_one_line(tmp_path):
    code = (
        "from bert_jax.monitoring import tracker_process as t;"
        " from tests.monitoring.test_tracker_process import Memory;"
        " t.TRACKERS['wandb'] = Memory; t.main()"
    )
    start = json.dumps(dataclasses.asdict(make_start(tmp_path)))
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=f'{start}\n{{"step": 1}}\n',
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr == (
        "config.trackers: wandb failed (KeyError: 'kind'); training continues without"
        " it; rerun the same command to send the rest of the metrics\n"
    )


def test_the_address_of_the_tracked_run_is_reported(tmp_path, memory, monkeypatch):
    monkeypatch.setattr(memory, "url", "https://host/run")
    assert send(tmp_path)[1] == ["wandb: https://host/run"]


def test_reports_hold_no_secrets_and_are_one_line(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123abcd")
    monkeypatch.setenv("EMPTY_TOKEN", "")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    text = without_secrets("key 0123abcd\nat http://u:p@h:1/x?write_token=2 is false")
    assert text == "key *** at http://h:1/x is false"
