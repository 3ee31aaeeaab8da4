"""Tests of bert_jax.monitoring.goodput."""

import pathlib

import pytest

from bert_jax.monitoring import goodput

NOTHING = dict.fromkeys(goodput.PARTS, 0.0)


def line(step, at, **seconds):
    """Returns a line of metrics.jsonl."""
    parts = {f"seconds_{part}": value for part, value in (NOTHING | seconds).items()}
    return {"step": step, "time": at, **parts}


def seconds_of(found):
    return {part: found[f"seconds_{part}"] for part in goodput.PARTS}


def test_each_second_is_counted_in_one_part(advance):
    found = goodput.Goodput([], 0, began=goodput.clock() - 4.0)
    advance(1.0)
    found.enter("data")
    advance(2.0)
    found.enter("steps")
    advance(10.0)
    found.enter("data")
    advance(3.0)
    found.reassign("steps")  # the devices were busy
    found.enter("saving")
    advance(0.5)
    line = found.line()
    assert seconds_of(line) == NOTHING | {
        "starting": 5.0,
        "data": 2.0,
        "steps": 13.0,
        "saving": 0.5,
    }
    assert line["goodput"] == pytest.approx(13 / 20.5)
    advance(1.0)
    assert found.line()["seconds_saving"] == 1.5


def test_a_resumed_run_continues_the_totals(advance):
    """The run saved at step 10, and was killed some time after the line of step 20."""
    now = goodput.time.time()
    lines = [
        line(10, now - 60, steps=10.0, compiling=7.0),
        line(20, now - 50, steps=18.0, compiling=7.0, saving=1.0),
        {"step": 30, "loss": 1.0},  # written by an older version
    ]
    found = goodput.Goodput(lines, 10, began=goodput.clock() - 2)
    assert seconds_of(found.line()) == NOTHING | {
        "steps": 10.0,
        "lost": 8.0,
        "compiling": 7.0,
        "saving": 1.0,
        "down": 48.0,
        "starting": 2.0,
    }


@pytest.mark.parametrize("jump", [3 * 3600.0, -3 * 3600.0])
def test_a_step_of_the_time_of_day_counts_in_no_part(advance, monkeypatch, jump):
    """The machine sets its clock after this process began, which is then exact."""
    now = goodput.time.time()
    lines = [line(10, now - 60, steps=10.0), line(20, now - 50, steps=18.0)]
    began = goodput.clock()
    advance(4.0)
    monkeypatch.setattr(goodput.time, "time", lambda: now + 4.0 + jump)
    lines = [line | {"time": line["time"] + jump} for line in lines]
    found = goodput.Goodput(lines, 20, began)
    expected = NOTHING | {"steps": 18.0, "down": 50.0, "starting": 4.0}
    assert seconds_of(found.line()) == expected


def test_no_duration_is_a_difference_of_times_of_day():
    package = pathlib.Path(goodput.__file__).parent.parent
    uses = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "time.time()" in path.read_text()
    }
    # The times of lines and events, and the pause between two processes.
    expected = {f"monitoring/{x}.py" for x in ("goodput", "trackers", "writer")}
    assert uses == expected


def test_summary_lists_the_largest_parts_first():
    summary = goodput.summary(
        [line(1, 0, steps=80.0, compiling=5, down=14.7, data=0.3)]
    )
    assert summary == (
        "Steps took 80% of the run's time, over all calls (15% not running, 5%"
        " compiling)."
    )
    assert goodput.summary([{"step": 1, "loss": 1.0}]) == ""
