"""Tests of bert_jax.monitoring.writer."""

import json
import os
import pathlib

import pytest
from tensorboard.backend.event_processing import event_accumulator

from bert_jax.monitoring import writer as writer_lib


def scalars(workdir, name):
    events = event_accumulator.EventAccumulator(str(workdir))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_flush_closes_the_files_and_write_reopens_them(tmp_path):
    """A mounted bucket stores a file when it is closed."""
    writer = writer_lib.MetricsWriter(str(tmp_path), 0)
    for step in range(1, 4):
        writer.write(step, {"loss": step / 2})
        assert open_files(tmp_path)
        writer.flush()
        assert not open_files(tmp_path)
        steps_so_far = range(1, step + 1)
        assert [x["step"] for x in writer_lib.read(str(tmp_path))] == [*steps_so_far]
        assert scalars(tmp_path, "loss") == [(i, i / 2) for i in steps_so_far]
    writer.flush()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1


def open_files(directory):
    """Returns the files in a directory that this process has open."""
    found = (os.path.realpath(x) for x in pathlib.Path("/proc/self/fd").iterdir())
    return [path for path in found if path.startswith(str(directory.resolve()))]


def test_tensorboard_discards_events_of_repeated_steps(tmp_path):
    for first_step, value in ((0, 1.0), (10, 2.0)):
        writer = writer_lib.MetricsWriter(str(tmp_path), first_step)
        for step in (first_step + 10, first_step + 20):
            writer.write(step, {"loss": value})
            writer.flush()
        writer.flush()
    assert scalars(tmp_path, "loss") == [(10, 1.0), (20, 2.0), (30, 2.0)]


def test_a_metric_that_is_not_finite_is_null(tmp_path):
    writer = writer_lib.MetricsWriter(str(tmp_path), 0)
    writer.write(5, {"loss": float("nan"), "grad_norm": float("inf"), "mfu": 0.5})
    writer.flush()
    (text,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "step": 5,
        "loss": None,
        "grad_norm": None,
        "mfu": 0.5,
    }


def test_lines_after_the_checkpoint_are_dropped_on_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in (10, 20, 30)]
    odd = ['{"loss": 1.0}', "[1]", "\\xff", '{"step": 40, "lo']  # truncated by a kill
    path.write_text("\n".join([*lines, *odd]))
    writer = writer_lib.MetricsWriter(str(tmp_path), 20)
    writer.write(30, {"loss": 2.0})
    writer.flush()
    assert [(li["step"], li["loss"]) for li in writer_lib.read(str(tmp_path))] == [
        (10, 1.0),
        (20, 1.0),
        (30, 2.0),
    ]
