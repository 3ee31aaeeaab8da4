"""Lines are means over finite steps, one step late; the guard hears of every step."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.monitoring import step_log, throughput
from tests.conftest import make_config


class FakeWriter:
    def __init__(self):
        self.lines = {}

    def write(self, step, line):
        self.lines[step] = line


def new_log(config, writer, on_steps=lambda step, metrics: None, *place):
    rates = throughput.Rates(config)
    log_every_steps = config.log_every_steps
    return step_log.StepLog(log_every_steps, rates, writer.write, on_steps, *place)


def step_metrics(value, bad_steps_in_row=0):
    return {
        "loss": jnp.float32(value),
        "learning_rate": jnp.float32(value),
        "bad_steps_in_row": jnp.int32(bad_steps_in_row),
    }


def test_log_lines_are_means_written_one_step_late():
    config = make_config(log_every_steps=2)
    writer = FakeWriter()
    log = new_log(config, writer)
    for step in range(1, 6):
        log.add(step, 0, step_metrics(step))
        assert list(writer.lines) == {1: [], 2: [], 3: [2], 4: [2], 5: [2, 4]}[step]
    log.flush()
    assert [line["loss"] for line in writer.lines.values()] == [1.5, 3.5, 5.0]
    assert [line["learning_rate"] for line in writer.lines.values()] == [2.0, 4.0, 5.0]
    assert writer.lines[4]["sequences_per_sec"] > 0
    tokens = writer.lines[4]["tokens_per_sec"] / writer.lines[4]["sequences_per_sec"]
    assert tokens == pytest.approx(config.phases[0].sequence_length)


def test_a_line_of_which_no_step_was_timed_tells_no_speed():
    """The first after a resume is of steps of the call before."""
    config = make_config(log_every_steps=2)
    writer = FakeWriter()
    left = ({"loss": 1.0, "learning_rate": 1.0, "bad_steps_in_row": 0.0},) * 2
    log = new_log(config, writer, lambda step, metrics: None, 2, 0, left)
    for step in range(3, 6):
        log.add(step, 0, step_metrics(step))
    first, second = writer.lines[2], writer.lines[4]
    rates = {"sequences_per_sec", "tokens_per_sec", "mfu"}
    assert not rates & first.keys() and rates < second.keys()
    assert second["sequences_per_sec"] > 0


def test_bad_steps_are_counted_and_left_out_of_means():
    config = make_config(log_every_steps=3)
    writer, heard = FakeWriter(), []
    log = new_log(
        config,
        writer,
        on_steps=lambda step, metrics: heard.append(
            (step, [int(m["bad_steps_in_row"]) for m in metrics])
        ),
    )
    for step, in_row in enumerate([0, 1, 0, 1, 2, 3], start=1):
        log.add(step, 0, step_metrics(np.nan if in_row else step, in_row))
    log.flush()
    assert heard == [(3, [0, 1, 0]), (6, [1, 2, 3])]
    first, second = writer.lines.values()
    assert (first["loss"], first["bad_steps"]) == (2.0, 1)
    assert np.isnan(second["loss"]) and second["bad_steps"] == 3
    assert "bad_steps_in_row" not in first


def test_what_hears_of_steps_can_end_the_run_before_the_line_is_written():
    writer = FakeWriter()

    def refuse(step, metrics):
        raise ValueError(step)

    log = new_log(make_config(log_every_steps=2), writer, on_steps=refuse)
    log.add(1, 0, step_metrics(1.0))
    with pytest.raises(ValueError, match="1"):
        log.flush()
    assert not writer.lines


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5, 6])
def test_lines_are_the_same_wherever_a_run_was_stopped(stop):
    """With two phases, of which the first ends in the middle of a line."""
    config = make_config(log_every_steps=3, phase={"num_steps": 4})
    config = dataclasses.replace(config, phases=config.phases * 2)
    bad = {2: 1}

    def take(log, first, last):
        for step in range(first, last + 1):
            in_row = bad.get(step, 0)
            value = np.nan if in_row else 0.1 * step
            log.add(step, (step - 1) // 4, step_metrics(value, in_row))

    def exact(writer):
        return {s: (li["loss"], li["bad_steps"]) for s, li in writer.lines.items()}

    straight = FakeWriter()
    log = new_log(config, straight)
    take(log, 1, 8)
    log.flush()
    expected = {3: (0.2, 1), 4: (0.4, 0), 6: (0.55, 0), 8: (0.75, 0)}
    assert exact(straight) == {s: pytest.approx(v) for s, v in expected.items()}
    stopped = FakeWriter()
    log = new_log(config, stopped)
    take(log, 1, stop)
    # Through a checkpoint, as JSON.
    left = json.loads(json.dumps(log.unwritten()))
    written = {s: li for s, li in stopped.lines.items() if s <= stop}
    stopped.lines = written
    phase_index = (stop - 1) // 4
    log = new_log(config, stopped, lambda step, metrics: None, stop, phase_index, left)
    take(log, stop + 1, 8)
    log.flush()
    assert exact(stopped) == exact(straight)
