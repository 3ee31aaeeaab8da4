"""Tests of bert_jax.monitoring.tracker_process.

tests/monitoring/test_trackers.py runs it with the libraries of the trackers.
"""

import dataclasses
import json

import pytest

from bert_jax.monitoring import tracker_process
from bert_jax.monitoring.tracker_process import Sender, Start, without_secrets


class Memory:
    """A tracker that keeps what it is sent, and fails at the calls in `failing`."""

    opened: list["Memory"] = []
    failing: set[int] = set()
    calls = 0
    url = ""

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
    start = Start(
        tracker="wandb",
        state_file=str(directory / "wandb.json"),
        name="run",
        config={},
        retry_secs=0.01,
        close_secs=1.0,
    )
    assert json.loads(json.dumps(dataclasses.asdict(start))) == vars(start)
    sender = Sender(start, reports.append)
    sender.open()
    assert all(sender.send(message) for message in messages)
    assert not sender.send({"is_complete": True})
    return Memory.opened[-1], reports


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


def test_a_failed_message_is_repeated_and_reported_once(tmp_path, memory):
    memory.failing = {2, 3, 5}
    tracker, reports = send(
        tmp_path, *(metrics(step, loss=float(step)) for step in (1, 2, 3))
    )
    assert [step for step, _, _ in tracker.sent] == [1, 2, 3]
    (report,) = reports
    assert report == (
        "wandb failed (ConnectionError: cannot reach https://host/api); training"
        " continues, and sending is retried every 0.01 s"
    )


def test_the_address_of_the_tracked_run_is_reported(tmp_path, memory, monkeypatch):
    monkeypatch.setattr(memory, "url", "https://host/run")
    assert send(tmp_path)[1] == ["wandb: https://host/run"]


def test_reports_hold_no_secrets_and_are_one_line(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123abcd")
    monkeypatch.setenv("EMPTY_TOKEN", "")
    text = without_secrets("key 0123abcd\nat http://u:p@h:1/x?write_token=2 failed")
    assert text == "key *** at http://h:1/x failed"
