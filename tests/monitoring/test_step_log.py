"""Tests of bert_jax.monitoring.step_log."""

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


def new_log(config, writer, on_steps=lambda step, metrics: None, *position):
    rates = throughput.Throughput(config)
    log_every_steps = config.log_every_steps
    return step_log.StepLog(log_every_steps, rates, writer.write, on_steps, *position)


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


def test_a_line_without_timed_steps_has_no_throughput():
    """The time of the first step includes its compilation."""
    config = make_config(log_every_steps=2)
    writer = FakeWriter()
    log = new_log(config, writer)
    log.add(1, 0, step_metrics(1.0))
    log.flush()  # as at a save
    log.add(2, 0, step_metrics(1.0))
    log.flush()
    first, second = writer.lines.values()
    rates = {"sequences_per_sec", "tokens_per_sec", "mfu"}
    assert not rates & first.keys() and rates < second.keys()
    assert second["sequences_per_sec"] > 0


def test_bad_steps_are_counted_and_excluded_from_means():
    config = make_config(log_every_steps=3)
    writer, checked = FakeWriter(), []
    log = new_log(
        config,
        writer,
        on_steps=lambda step, metrics: checked.append(
            (step, [int(m["bad_steps_in_row"]) for m in metrics])
        ),
    )
    for step, in_row in enumerate([0, 1, 0, 1, 2, 3], start=1):
        log.add(step, 0, step_metrics(np.nan if in_row else step, in_row))
    log.flush()
    assert checked == [(3, [0, 1, 0]), (6, [1, 2, 3])]
    first, second = writer.lines.values()
    assert (first["loss"], first["bad_steps"]) == (2.0, 1)
    assert np.isnan(second["loss"]) and second["bad_steps"] == 3
    assert "bad_steps_in_row" not in first


def test_on_steps_can_end_the_run_before_the_line_is_written():
    writer = FakeWriter()

    def refuse(step, metrics):
        raise ValueError(step)

    log = new_log(make_config(log_every_steps=2), writer, on_steps=refuse)
    log.add(1, 0, step_metrics(1.0))
    with pytest.raises(ValueError, match="1"):
        log.flush()
    assert not writer.lines


def test_lines_do_not_depend_on_where_a_run_resumes():
    """A save writes the line of the steps so far, so checkpoints hold no metrics."""
    config = make_config(log_every_steps=3)

    def take(log, first, last):
        for step in range(first, last + 1):
            log.add(step, 0, step_metrics(0.1 * step))
            if step == 4:
                log.flush()  # as at a save

    straight, resumed = FakeWriter(), FakeWriter()
    log = new_log(config, straight)
    take(log, 1, 8)
    log.flush()
    log = new_log(config, resumed, lambda step, metrics: None, 4)
    take(log, 5, 8)
    log.flush()
    found = {step: line["loss"] for step, line in straight.lines.items()}
    assert found == {
        s: pytest.approx(v) for s, v in {3: 0.2, 4: 0.4, 6: 0.55, 8: 0.75}.items()
    }
    assert {s: line["loss"] for s, line in resumed.lines.items()} == {
        step: loss for step, loss in found.items() if step > 4
    }
