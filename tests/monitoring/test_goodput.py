"""Seconds go where they were spent, over calls that end in any way."""

import time

import pytest

from bert_jax.monitoring import goodput

NOTHING = dict.fromkeys(goodput.PARTS, 0.0)


def line(step, at, **seconds):
    """Returns a line of metrics.jsonl."""
    parts = {f"seconds_{part}": value for part, value in (NOTHING | seconds).items()}
    return {"step": step, "time": at, **parts}


def seconds_of(found):
    return {part: found[f"seconds_{part}"] for part in goodput.PARTS}


@pytest.fixture
def clock(monkeypatch):
    """Time that goes on only when it is told to."""
    now = [1000.0]
    monkeypatch.setattr(goodput.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(goodput.time, "time", lambda: now[0] + 5000.0)

    def wait(seconds):
        now[0] += seconds

    return wait


def test_each_second_has_one_part(clock):
    found = goodput.Goodput([], 0, started=time.time() - 4.0)
    clock(1.0)
    found.enter("data")
    clock(2.0)
    found.enter("steps")
    clock(10.0)
    found.enter("data")
    clock(3.0)
    found.leave_as("steps")  # devices were busy meanwhile
    found.enter("saving")
    clock(0.5)
    line = found.line()
    assert seconds_of(line) == NOTHING | {
        "starting": 5.0,
        "data": 2.0,
        "steps": 13.0,
        "saving": 0.5,
    }
    assert line["goodput"] == pytest.approx(13 / 20.5)
    clock(1.0)
    assert found.line()["seconds_saving"] == 1.5


def test_the_next_call_goes_on_counting(clock):
    """Saved at step 10; killed some time after the line of step 20."""
    now = goodput.time.time()
    lines = [
        line(10, now - 60, steps=10.0, compiling=7.0),
        line(20, now - 50, steps=18.0, compiling=7.0, saving=1.0),
        {"step": 30, "loss": 1.0},  # of an older version
    ]
    found = goodput.Goodput(lines, 10, started=now - 2)
    assert seconds_of(found.line()) == NOTHING | {
        "steps": 10.0,
        "lost": 8.0,
        "compiling": 7.0,
        "saving": 1.0,
        "down": 48.0,
        "starting": 2.0,
    }


def test_a_call_that_was_asked_to_stop_lost_nothing(clock):
    now = goodput.time.time()
    found = goodput.Goodput([line(20, now - 9, steps=18.0)], 20, started=now)
    assert seconds_of(found.line()) == NOTHING | {"steps": 18.0, "down": 9.0}


def test_words_name_the_largest_parts_first():
    words = goodput.words([line(1, 0, steps=80.0, compiling=5.0, down=14.7, data=0.3)])
    assert words == (
        "Of its time, over all calls, 80% went into steps"
        " (15% not running, 5% compiling)."
    )
