"""Tests of bert_jax.monitoring.monitor."""

import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from bert_jax.monitoring import goodput, writer
from bert_jax.monitoring.monitor import Monitor

NUM_STEPS = 9


def lines(workdir):
    return writer.read(str(workdir))


@pytest.fixture
def advance(monkeypatch):
    """Stops the clock of goodput, and returns a function that advances it."""
    clock = SimpleNamespace(now=1000.0)
    clock.time = lambda: clock.now
    monkeypatch.setattr(goodput, "time", clock)
    monkeypatch.setattr(goodput, "clock", clock.time)

    def advance(seconds):
        clock.now += seconds

    return advance


def open_monitor(workdir, on_steps=lambda step, metrics: None, first_step=0, **parts):
    """Returns a monitor with a log of three steps a line."""
    monitor = Monitor(**parts)
    monitor.open_log(
        str(workdir),
        first_step,
        NUM_STEPS,
        log_every_steps=3,
        phase_index=0,
        rates=lambda phase_index, rate: {"rate": rate},
        format_steps=lambda line: f"loss {line['loss']:g}",
        on_steps=on_steps,
        began=goodput.clock(),
    )
    return monitor


def step_metrics(value, bad_steps_in_row=0):
    return {
        "loss": jnp.float32(value),
        "learning_rate": jnp.float32(0.5),
        "bad_steps_in_row": jnp.int32(bad_steps_in_row),
    }


def seconds_of(workdir):
    """Returns the parts of the last line that are not 0."""
    line = lines(workdir)[-1]
    seconds = {part: line[f"seconds_{part}"] for part in goodput.PARTS}
    return {part: value for part, value in seconds.items() if value}


# ------------------------------------------------------------------------ activities


@pytest.mark.parametrize(
    ("name", "part"), [("saving", "saving"), ("rolling back", "starting")]
)
def test_activity_counts_its_time_in_its_part(tmp_path, advance, name, part):
    monitor = open_monitor(tmp_path)
    monitor._clock.enter("steps")
    with monitor.activity(name):
        advance(2.0)
    advance(1.0)  # back in the part from before
    monitor.log_time(0)
    assert seconds_of(tmp_path) == {part: 2.0, "steps": 1.0}


def test_nested_activities_count_each_second_once(tmp_path, advance):
    monitor = open_monitor(tmp_path)
    with monitor.activity("evaluating"):
        advance(1.0)
        with monitor.activity("compiling"):
            advance(4.0)
        advance(2.0)
    monitor.log_time(0)
    assert seconds_of(tmp_path) == {"evaluating": 3.0, "compiling": 4.0}


def test_activity_that_fails_is_counted_and_ends(tmp_path, advance):
    monitor = open_monitor(tmp_path)
    with pytest.raises(KeyError), monitor.activity("saving"):
        advance(2.0)
        raise KeyError
    advance(1.0)
    monitor.log_time(0)
    assert seconds_of(tmp_path) == {"saving": 2.0, "starting": 1.0}
    assert monitor._watchdog._what == "saving"


def test_activities_before_the_first_step_are_stages_of_the_startup(tmp_path, capsys):
    monitor = Monitor(goodput.Startup())  # there is no log yet
    with monitor.activity("opening devices"):
        pass
    monitor = open_monitor(tmp_path, startup=monitor._startup)
    for step, _ in enumerate(monitor.timed("ab"), start=1):
        monitor.step(step, 0, step_metrics(1.0))
        with monitor.activity("saving"):
            pass
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "start:" in x]
    assert [part.rsplit(" ", 2)[0].strip() for part in line[7:].split(",")] == [
        "import",
        "opening devices",
        "data",
        "first step",
    ]


# -------------------------------------------------------------------------- watchdog


def test_watchdog_names_the_activity_or_the_step(tmp_path):
    monitor = open_monitor(tmp_path)
    watchdog = monitor._watchdog
    with monitor.activity("saving"):
        assert watchdog._what == "the start of saving" and watchdog._since is not None
    assert watchdog._what == "saving" and watchdog._since is not None
    batches = monitor.timed([0])
    next(batches)
    assert watchdog._what == "the start of reading the first batch"
    monitor.step(1, 0, step_metrics(1.0))
    assert watchdog._what == "step 1"


def test_unbounded_activity_has_no_limit(tmp_path):
    monitor = open_monitor(tmp_path)
    with monitor.activity("opening the corpus", is_bounded=False):
        assert monitor._watchdog._since is None
    assert monitor._watchdog._since is not None


def test_watchdog_runs_while_the_context_is_open(tmp_path):
    def is_watched():
        return "watchdog" in [thread.name for thread in threading.enumerate()]

    with Monitor() as monitor:
        assert monitor._watchdog._thread.is_alive() and is_watched()
    assert not monitor._watchdog._thread.is_alive()


# ------------------------------------------------------------------------------ time


def test_waiting_for_a_batch_counts_as_data_if_the_devices_are_idle(tmp_path, advance):
    monitor = open_monitor(tmp_path)

    def batches():
        for _ in range(2):
            advance(3.0)
            yield

    for step, _ in enumerate(monitor.timed(batches()), start=1):
        advance(10.0)
        monitor.step(step, 0, step_metrics(1.0))
    monitor.log_time(2)
    assert seconds_of(tmp_path) == {"data": 6.0, "steps": 20.0}


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
    monitor.log_time(0)
    assert seconds_of(tmp_path) == {"steps": 3.0, "data": 5.0}


# ----------------------------------------------------------------------------- lines


def test_steps_are_averaged_over_a_line_and_printed(tmp_path, capsys):
    checked = []
    monitor = open_monitor(
        tmp_path,
        on_steps=lambda step, metrics: checked.append(
            (step, [float(x["loss"]) for x in metrics])
        ),
    )
    for step, _ in enumerate(monitor.timed(range(5)), start=1):
        monitor.step(step, 0, step_metrics(step))
    assert [line["step"] for line in lines(tmp_path)] == [3]  # one step late
    monitor.flush()
    first, second = lines(tmp_path)
    assert (first["loss"], first["bad_steps"], second["loss"]) == (2.0, 0.0, 4.5)
    assert second["step"] == 5 and second["rate"] > 0
    assert {"time", "goodput", "seconds_steps"} < first.keys()
    assert checked == [(3, [1.0, 2.0, 3.0]), (5, [4.0, 5.0])]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[:2] for line in printed] == [
        ["step 3/9", "loss 2"],
        ["step 5/9", "loss 4.5"],
    ]


def test_an_evaluation_follows_the_line_of_the_steps_before(tmp_path, capsys):
    monitor = open_monitor(tmp_path)
    for step, _ in enumerate(monitor.timed(range(2)), start=1):
        monitor.step(step, 0, step_metrics(step))
    monitor.log(2, {"eval_loss": 7.0}, "held out: loss 7")
    monitor.step(3, 0, step_metrics(3))  # not timed: it may include the evaluation
    monitor.flush()
    steps, evaluation, last = lines(tmp_path)
    assert (steps["step"], steps["loss"]) == (2, 1.5)
    assert (evaluation["step"], evaluation["eval_loss"]) == (2, 7.0)
    assert "loss" not in evaluation and "seconds_steps" in evaluation
    assert last["loss"] == 3.0 and "rate" not in last
    assert "step 2 held out: loss 7" in capsys.readouterr().out.splitlines()


def test_errors_of_the_check_are_raised_before_the_line_is_written(tmp_path):
    def refuse(step, metrics):
        raise ValueError(f"step {step} diverged")

    monitor = open_monitor(tmp_path, on_steps=refuse)
    monitor.step(1, 0, step_metrics(1.0))
    with pytest.raises(ValueError, match="step 1 diverged"):
        monitor.flush()
    assert lines(tmp_path) == []


def test_flush_writes_nothing_without_new_steps(tmp_path):
    monitor = open_monitor(tmp_path)
    monitor.step(1, 0, step_metrics(1.0))
    monitor.flush()
    monitor.flush()
    assert len(lines(tmp_path)) == 1


# ----------------------------------------------------------------------------- close


def test_close_is_idempotent_and_drops_the_steps_since_the_last_line(tmp_path):
    with open_monitor(tmp_path) as monitor:
        monitor.step(1, 0, step_metrics(1.0))
        monitor.flush()
        monitor.step(2, 0, step_metrics(2.0))
        monitor.close()
        monitor.close()
    assert [line["step"] for line in lines(tmp_path)] == [1]
    Monitor().close()  # without a log


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
    open_monitor(tmp_path, first_step=3).log_time(3)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 3]
    assert seconds_of(tmp_path) == {"steps": 3.0, "lost": 1.0, "down": 8.0}
