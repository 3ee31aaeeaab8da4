"""Tests of bert_jax.monitoring.progress."""

import re
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


def test_short_work_prints_nothing(capsys):
    with progress.Progress("tokenizing", 640, "MB") as shown:
        shown.add(640)
    assert capsys.readouterr().out == ""


def test_an_error_ends_the_lines_without_a_total(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECS", 0.01)
    with pytest.raises(ValueError), progress.Progress("tokenizing", 640, "MB"):
        time.sleep(0.1)
        raise ValueError
    out = capsys.readouterr().out
    assert "0 of 640 MB" in out and " in " not in out
    time.sleep(0.05)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "elapsed, secs", [(0, 10), (60, 10), (300, 30), (3600, 60), (36_000, 60)]
)
def test_lines_become_less_frequent(elapsed, secs):
    assert progress.line_interval(elapsed) == secs


def test_speed_excludes_work_of_earlier_calls(clock):
    shown = progress.Progress("writing", 100, "shards")
    shown.add(60, found_done=True)
    assert shown.line() == "writing: 60 of 100 shards"
    clock.now += 5
    shown.add(10)
    assert shown.line() == "writing: 70 of 100 shards, 2.0 shards/s, 15 s left"


def test_slow_work_has_a_speed(clock):
    shown = progress.Progress("writing", 2, "shards")
    clock.now += 20
    shown.add(1)
    assert shown.line() == "writing: 1 of 2 shards, 0.05 shards/s, 20 s left"


@pytest.mark.parametrize("total", [None, 10])
def test_without_a_total_or_beyond_it_there_is_no_time_left(clock, total):
    shown = progress.Progress("tokenizing", total, "MB")
    clock.now += 10
    shown.add(20)
    assert shown.line() == "tokenizing: 20 MB, 2.0 MB/s"


def test_a_terminal_shows_a_bar(clock, monkeypatch):
    terminal = be_a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    with progress.Progress("tokenizing", 640, "MB") as shown:
        clock.now += 10
        shown.add(40)
    text = terminal.getvalue()
    assert "tokenizing: 40 of 640 MB, 4.0 MB/s, 150 s left" in text
    assert "\x1b[2K" in text  # the bar is erased at the end


def test_a_dumb_terminal_shows_lines(monkeypatch):
    terminal = be_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(progress, "LINE_SECS", 0.01)
    with progress.Progress("tokenizing", 640, "MB"):
        time.sleep(0.1)
    assert terminal.getvalue().startswith("tokenizing: 0 of 640 MB\n")


def test_a_closed_standard_output_is_not_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert not progress.has_terminal()


# ----------------------------------------------------------------------------- tasks


def test_a_long_task_is_reported_at_intervals(capsys, monkeypatch):
    monkeypatch.setattr(progress, "TICK_SECS", 0.01)
    deadline, written = time.monotonic() + 60, ""
    with progress.task("preflight: compiling", "stderr"):
        while " so far" not in written and time.monotonic() < deadline:
            time.sleep(0.01)
            written += capsys.readouterr().err
    assert re.search(r"^preflight: compiling: \d+ s so far$", written, re.M)


def test_a_task_is_logged_on_standard_output(capsys):
    with progress.task("tokenizer: training", "stdout"):
        pass
    assert capsys.readouterr().out.splitlines() == [
        "tokenizer: training ...",
        "tokenizer: training: 0 s",
    ]
