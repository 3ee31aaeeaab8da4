"""Tests of bert_jax.monitoring.progress."""

import time

import pytest

from bert_jax.monitoring import progress
from tests.conftest import be_a_terminal


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_lines_are_printed_while_no_amount_is_added(monkeypatch, capsys):
    """A batch of text may take longer than the interval between two lines."""
    monkeypatch.setattr(progress, "LINE_SECS", 0.01)
    with progress.Progress("tokenizing", 640, "MB") as shown:
        time.sleep(0.1)
        shown.add(640)
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines[0] == "tokenizing: 0 of 640 MB"
    assert len(lines) >= 2
    assert last == "tokenizing: 640 MB in 0 s"


def test_an_error_ends_the_lines_without_a_total(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECS", 0.01)
    with pytest.raises(ValueError), progress.Progress("tokenizing", 640, "MB"):
        time.sleep(0.1)
        raise ValueError
    out = capsys.readouterr().out
    assert "0 of 640 MB" in out and " in " not in out
    time.sleep(0.05)
    assert capsys.readouterr().out == ""


def test_speed_excludes_work_of_earlier_calls(clock):
    shown = progress.Progress("writing", 100, "shards")
    shown.add(60, found_done=True)
    assert shown.line() == "writing: 60 of 100 shards"
    clock.now += 5
    shown.add(10)
    assert shown.line() == "writing: 70 of 100 shards, 2.0 shards/s, 15 s left"


def test_a_terminal_shows_a_bar(clock, monkeypatch):
    terminal = be_a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    with progress.Progress("tokenizing", 640, "MB") as shown:
        clock.now += 10
        shown.add(40)
    text = terminal.getvalue()
    assert "tokenizing: 40 of 640 MB, 4.0 MB/s, 150 s left" in text
    assert "\x1b[2K" in text  # the bar is erased at the end


def test_a_long_task_is_reported_at_intervals(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECS", 0.01)
    deadline, written = time.monotonic() + 60, ""
    with progress.task("training"):
        while " so far" not in written and time.monotonic() < deadline:
            time.sleep(0.01)
            written += capsys.readouterr().out
    assert "training: 0 s so far\n" in written
