"""Tests of bert_jax.monitoring.monitor, by the lines that it writes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.monitoring import goodput, writer
from bert_jax.monitoring import monitor as monitor_lib
from bert_jax.monitoring.monitor import Monitor

NUM_STEPS = 9


def lines(workdir):
    return writer.read(str(workdir))


def open_monitor(workdir, on_steps=lambda step, metrics: None, first_step=0):
    """Returns a monitor with a log of three steps a line."""
    monitor = Monitor()
    monitor.open_log(
        str(workdir),
        first_step,
        NUM_STEPS,
        log_every_steps=3,
        rates=lambda phase_index, rate: {"rate": rate},
        format_steps=lambda line: f"loss {line['loss']:g}",
        on_steps=on_steps,
        began=goodput.clock(),
    )
    return monitor


def step_metrics(value, bad_steps_in_row=0):
    return {
        "loss": jnp.float32(value),
        "learning_rate": jnp.float32(value),
        "bad_steps_in_row": jnp.int32(bad_steps_in_row),
    }


def take(monitor, first, last):
    for step in range(first, last + 1):
        monitor.step(step, 0, step_metrics(step))


def seconds_of(workdir):
    """Returns the parts of the last line that are not 0."""
    line = lines(workdir)[-1]
    seconds = {part: line[f"seconds_{part}"] for part in goodput.PARTS}
    return {part: value for part, value in seconds.items() if value}


# ------------------------------------------------------------------------ activities


def test_activities_count_each_second_in_one_part(tmp_path, advance):
    monitor = open_monitor(tmp_path)
    with monitor.activity("evaluating"):
        advance(1.0)
        with monitor.activity("compiling"):
            advance(4.0)
        advance(2.0)
    with monitor.activity("rolling back"):
        advance(8.0)
    with pytest.raises(KeyError), monitor.activity("saving"):
        advance(16.0)
        raise KeyError
    advance(32.0)  # back in the part from before
    monitor.write(0, {})
    assert seconds_of(tmp_path) == {
        "evaluating": 3.0,
        "compiling": 4.0,
        "starting": 40.0,
        "saving": 16.0,
    }


def test_the_watchdog_is_told_of_activities_and_steps(tmp_path, monkeypatch):
    told: list[Any] = []

    class Watchdog:
        def __getattr__(self, name):
            return lambda *given: told.append((name.strip("_"), *given[:1]))

        def __enter__(self):
            told.append(("enter",))

        def __exit__(self, *_):
            told.append(("exit",))

    monkeypatch.setattr(monitor_lib, "Watchdog", Watchdog)
    with open_monitor(tmp_path) as monitor:
        with monitor.activity("saving"):
            pass
        with monitor.activity("opening the corpus", is_bounded=False):
            pass
        next(monitor.timed([0]))
        take(monitor, 1, 1)
    assert told == [
        ("enter",),
        ("begin", "saving"),
        ("heartbeat", "saving"),
        ("pause",),
        ("heartbeat", "opening the corpus"),
        ("begin", "reading the first batch"),
        ("heartbeat", "step 1"),
        ("exit",),
    ]


# ------------------------------------------------------------------------------ time


def test_waiting_for_a_batch_counts_as_steps_if_a_device_is_busy(tmp_path, advance):
    monitor = open_monitor(tmp_path)
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, x: x @ x, x))
    compiled = loop.lower(x := jnp.zeros((500, 500))).compile()
    monitor._last_metrics = {"loss": compiled(x)}  # takes about a second

    def batches():
        advance(3.0)
        yield "while busy"
        jax.block_until_ready(monitor._last_metrics)
        advance(5.0)
        yield "while idle"

    assert list(monitor.timed(batches())) == ["while busy", "while idle"]
    monitor.write(0, {})
    assert seconds_of(tmp_path) == {"steps": 3.0, "data": 5.0}


# ----------------------------------------------------------------------------- lines


def test_lines_are_means_written_one_step_late(tmp_path, capsys):
    checked = []

    def on_steps(step, metrics):
        checked.append((step, [float(x["loss"]) for x in metrics]))

    monitor = open_monitor(tmp_path, on_steps)
    for step in range(1, 6):
        take(monitor, step, step)
        assert [x["step"] for x in lines(tmp_path)] == ([3] if step > 3 else [])
    monitor.flush()
    monitor.flush()  # there are no new steps
    first, second = lines(tmp_path)
    assert (first["loss"], first["learning_rate"], first["bad_steps"]) == (2.0, 3.0, 0)
    assert (second["step"], second["loss"]) == (5, 4.5) and second["rate"] > 0
    assert {"time", "goodput", "seconds_steps"} < first.keys()
    assert checked == [(3, [1.0, 2.0, 3.0]), (5, [4.0, 5.0])]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[:2] for line in printed] == [
        ["step 3/9", "loss 2"],
        ["step 5/9", "loss 4.5"],
    ]


def test_a_line_without_timed_steps_has_no_rate(tmp_path):
    """The time of the first step of a phase includes its compilation."""
    monitor = open_monitor(tmp_path)
    for step, phase_index in enumerate((0, 0, 1, 1), start=1):
        monitor.step(step, phase_index, step_metrics(1.0))
        monitor.flush()  # as at a save
    assert ["rate" in line for line in lines(tmp_path)] == [False, True, False, True]


def test_bad_steps_are_counted_and_excluded_from_means(tmp_path):
    monitor = open_monitor(tmp_path)
    for step, in_row in enumerate([0, 1, 0, 1, 2, 3], start=1):
        monitor.step(step, 0, step_metrics(np.nan if in_row else step, in_row))
    monitor.flush()
    first, second = lines(tmp_path)
    assert (first["loss"], first["bad_steps"]) == (2.0, 1)
    assert (second["loss"], second["bad_steps"]) == (None, 3)
    assert "bad_steps_in_row" not in first


def test_an_evaluation_follows_the_line_of_the_steps_before(tmp_path, capsys):
    monitor = open_monitor(tmp_path)
    take(monitor, 1, 2)
    monitor.log(2, {"eval_loss": 7.0}, "held out: loss 7")
    take(monitor, 3, 3)  # not timed: it may include the evaluation
    monitor.flush()
    steps, evaluation, last = lines(tmp_path)
    assert (steps["step"], steps["loss"]) == (2, 1.5)
    assert (evaluation["step"], evaluation["eval_loss"]) == (2, 7.0)
    assert "loss" not in evaluation and "seconds_steps" in evaluation
    assert last["loss"] == 3.0 and "rate" not in last
    assert "step 2 held out: loss 7" in capsys.readouterr().out.splitlines()


def test_lines_do_not_depend_on_where_a_run_resumes(tmp_path):
    """A save writes the line of the steps so far, so checkpoints hold no metrics."""
    monitor = open_monitor(tmp_path)
    take(monitor, 1, 4)
    monitor.flush()  # as at a save
    take(monitor, 5, 8)
    monitor.flush()
    straight = [(line["step"], line["loss"]) for line in lines(tmp_path)]
    assert straight == [(3, 2.0), (4, 4.0), (6, 5.5), (8, 7.5)]
    monitor.close()
    monitor = open_monitor(tmp_path, first_step=4)
    take(monitor, 5, 8)
    monitor.flush()
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == straight


# ----------------------------------------------------------------------------- close


def test_a_reopened_log_drops_lines_of_lost_steps_and_continues_the_time(
    tmp_path, advance
):
    monitor = open_monitor(tmp_path)
    for step, _ in enumerate(monitor.timed(range(4)), start=1):
        advance(1.0)
        monitor.step(step, 0, step_metrics(step))
        monitor.flush()
    monitor.close()
    advance(8.0)
    open_monitor(tmp_path, first_step=3).write(3, {})
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 3]
    assert seconds_of(tmp_path) == {"steps": 3.0, "lost": 1.0, "down": 8.0}
