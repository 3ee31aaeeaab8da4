"""Tests of bert_jax.monitoring.progress."""

import errno
import io
import re
import time
from types import SimpleNamespace

import pytest

from bert_jax.monitoring import progress
from tests.conftest import be_a_terminal


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1000.0)
    monkeypatch.setattr(progress, "time", clock)
    return clock


def printed_until(text, capsys):
    """Waits for a text, and returns what was printed."""
    written, deadline = "", time.monotonic() + 60
    while text not in written and time.monotonic() < deadline:
        time.sleep(0.01)
        written += capsys.readouterr().out
    return written


def test_lines_are_printed_while_no_amount_is_added(monkeypatch, capsys):
    """A batch of text may take longer than the interval between two lines."""
    monkeypatch.setattr(progress, "LINE_SECS", 0.01)
    with progress.Progress("tokenizing", 640, "MB") as shown:
        written = printed_until("MB\ntokenizing: 0 of 640", capsys)
        shown.add(640)
    *lines, last = (written + capsys.readouterr().out).splitlines()
    assert lines[0] == "tokenizing: 0 of 640 MB"
    assert re.fullmatch(r"tokenizing: 640 MB in \d+ s", last)


def test_an_error_ends_the_lines_without_a_total(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECS", 0.01)
    with pytest.raises(ValueError), progress.Progress("tokenizing", 640, "MB"):
        written = printed_until("0 of 640 MB", capsys)
        raise ValueError
    assert "0 of 640 MB" in written and " in " not in capsys.readouterr().out
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
    with progress.task("training"):
        written = printed_until(" so far", capsys)
    assert re.search(r"training: \d+ s so far\n", written)


# ---------------------------------------------------------------------------- steps


class FailingOutput(io.StringIO):
    """A standard output whose writes fail."""

    def __init__(self, error: OSError):
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


def test_a_closed_terminal_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr("sys.stdout", FailingOutput(OSError(errno.EIO, "gone")))
    progress.StepProgress(0, 100).print("step 1")


def test_a_closed_pipe_ends_the_run(monkeypatch):
    monkeypatch.setattr("sys.stdout", FailingOutput(BrokenPipeError()))
    with pytest.raises(BrokenPipeError):
        progress.StepProgress(0, 100).print("step 1")


def test_the_time_left_excludes_compilation(clock, capsys):
    """A line is written one step late, the first line after a resume at once."""
    shown = progress.StepProgress(400, 1600)
    clock.now += 3600.0  # compiling
    shown.advance(401)
    shown.update(400, "resumed")
    clock.now += 10.0
    shown.advance(411)
    shown.update(410, "late")
    shown.advance(1600)
    shown.update(1600, "last")
    assert capsys.readouterr().out.splitlines() == [
        "step 400/1,600    resumed",
        "step 410/1,600    late  19 min 49 s left",
        "step 1,600/1,600  last  0 s left",
    ]


def test_a_log_file_has_a_line_at_least_every_30_seconds(clock, capsys):
    shown = progress.StepProgress(0, 100)
    clock.now += 3600.0  # compiling
    for step in range(1, 11):
        shown.advance(step)
        clock.now += 13.0
    shown.tick("  dev set: 3 of 9 rows")
    clock.now += 29.0
    shown.tick("  dev set: 6 of 9 rows")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "step 4/100 20 min 48 s left",
        "step 7/100 20 min 09 s left",
        "step 10/100 19 min 30 s left",
        "step 10/100 dev set: 6 of 9 rows 26 min 30 s left",
    ]
