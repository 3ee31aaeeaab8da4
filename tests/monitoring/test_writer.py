"""FLOPs counted independently, and writers that survive a kill."""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator

from bert_jax import config as config_lib
from bert_jax.configs import base
from bert_jax.monitoring import throughput
from bert_jax.monitoring import writer as writer_lib
from bert_jax.training import step as step_lib
from tests.conftest import make_batch, make_config


def count_products(jaxpr) -> int:
    """Returns the FLOPs of every dot_general in a jaxpr and the jaxprs inside it."""
    flops = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            lhs = equation.invars[0].aval.shape
            size = int(np.prod([lhs[dim] for dim in contracted]))
            flops += 2 * size * int(np.prod(equation.outvars[0].aval.shape))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                flops += count_products(inner)
    return flops


def test_flops_are_those_of_the_programs_matrix_products():
    config = make_config(model__num_hidden_layers=3)
    phase = config.phases[0]
    graphdef, _ = step_lib.init_state(config, None)
    key = jax.random.key(0)
    from bert_jax.model import bert

    _, params = bert.build(config.model, config.tokenizer.vocab_size, key)
    batch = {name: jnp.asarray(rows) for name, rows in make_batch(config).items()}
    jaxpr = jax.make_jaxpr(
        lambda p, b: step_lib.loss_sums(
            graphdef,
            p,
            b,
            dropout_key=None,
            dtype=jnp.dtype(jnp.float32),
            next_sentence=True,
        )
    )(params, batch)
    B, T, D = phase.global_batch_size, phase.sequence_length, config.model.hidden_size
    # The segment embedding is looked up by a product with one-hot rows.
    counted = count_products(jaxpr.jaxpr) / B - 2 * T * 2 * D
    formula = throughput.train_flops_per_sequence(
        config.model, config.tokenizer.vocab_size, phase
    )
    assert formula / 3 == pytest.approx(counted, rel=1e-6)


def test_flops_of_base_are_near_the_usual_formula():
    """Below 69.9 G a sequence at 128 tokens by what the last layer leaves out."""
    config = config_lib.from_config_dict(base.get_config())
    flops = throughput.train_flops_per_sequence(config.model, 30522, config.phases[0])
    assert 65e9 < flops < 69.9e9


def test_peak_of_an_unknown_device_is_measured():
    assert 1e8 < throughput.peak_flops() < 1e14


def scalars(workdir, name):
    events = event_accumulator.EventAccumulator(str(workdir))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_writer_writes_json_lines_and_tensorboard(tmp_path):
    writer = writer_lib.MetricsWriter(str(tmp_path), 0)
    writer.write(5, {"loss": 1.5})
    writer.write(10, {"loss": 1.25})
    writer.close()
    assert writer_lib.read(str(tmp_path)) == [
        {"step": 5, "loss": 1.5},
        {"step": 10, "loss": 1.25},
    ]
    assert scalars(tmp_path, "loss") == [(5, 1.5), (10, 1.25)]


def test_what_is_flushed_is_whole_and_closed_and_goes_on(tmp_path):
    """A mounted bucket takes a file when it is closed."""
    writer = writer_lib.MetricsWriter(str(tmp_path), 0)
    for step in range(1, 4):
        writer.write(step, {"loss": step / 2})
        assert open_files(tmp_path)
        writer.flush()
        assert not open_files(tmp_path)
        steps_so_far = range(1, step + 1)
        assert [x["step"] for x in writer_lib.read(str(tmp_path))] == [*steps_so_far]
        assert scalars(tmp_path, "loss") == [(i, i / 2) for i in steps_so_far]
    writer.close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1


def open_files(directory):
    """Returns what this process has open there."""
    found = (os.path.realpath(x) for x in pathlib.Path("/proc/self/fd").iterdir())
    return [path for path in found if path.startswith(str(directory.resolve()))]


def test_tensorboard_forgets_what_comes_again(tmp_path):
    for first_step, value in ((0, 1.0), (10, 2.0)):
        writer = writer_lib.MetricsWriter(str(tmp_path), first_step)
        for step in (first_step + 10, first_step + 20):
            writer.write(step, {"loss": value})
            writer.flush()
        writer.close()
    assert scalars(tmp_path, "loss") == [(10, 1.0), (20, 2.0), (30, 2.0)]


def test_what_is_not_finite_is_null(tmp_path):
    writer = writer_lib.MetricsWriter(str(tmp_path), 0)
    writer.write(5, {"loss": float("nan"), "grad_norm": float("inf"), "mfu": 0.5})
    writer.close()
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
    odd = ['{"loss": 1.0}', "[1]", "\\xff", '{"step": 40, "lo']  # and cut off by a kill
    path.write_text("\n".join([*lines, *odd]))
    writer = writer_lib.MetricsWriter(str(tmp_path), 20)
    writer.write(30, {"loss": 2.0})
    writer.close()
    assert [(li["step"], li["loss"]) for li in writer_lib.read(str(tmp_path))] == [
        (10, 1.0),
        (20, 1.0),
        (30, 2.0),
    ]


def test_a_peak_that_a_run_goes_over_is_measured_again(monkeypatch):
    """The first time other work took its share of the processor."""
    peaks = [1e9, 4e9, 2e9]
    monkeypatch.setattr(writer_lib, "peak_flops", lambda: peaks.pop(0))
    monkeypatch.setattr(writer_lib.jax, "device_count", lambda: 1)
    rates = throughput.Rates(make_config())
    flops = throughput.train_flops_per_sequence(
        rates._config.model,
        rates._config.tokenizer.vocab_size,
        rates._config.phases[0],
    )
    rows = rates._config.phases[0].global_batch_size

    def mfu(flops_per_sec):
        return pytest.approx(rates(0, flops_per_sec / flops / rows)["mfu"])

    assert mfu(5e8) == 0.5 and len(peaks) == 2
    assert mfu(3e9) == 0.75 and len(peaks) == 1
    assert mfu(6e9) == 1.5 and not peaks  # no peak falls
