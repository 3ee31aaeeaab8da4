"""Seconds, rates, hours and cost of a step are computed from its cycles."""

import pytest

from bert_jax.distributed.chips import CHIPS
from bert_jax.monitoring.throughput import train_flops_per_sequence
from bert_jax.preflight import estimate
from bert_jax.preflight.hlo import CompiledProgram
from tests.conftest import make_config, use_mesh

V5E = CHIPS["TPU v5 lite"]
PROGRAM = """\
ENTRY %main (x: f32[1024]) -> f32[1024] {
  %a = f32[1024] fusion(%x), backend_config={"estimated_cycles":"3000000"}
  %b = f32[1024] copy(%a), backend_config={"estimated_cycles":"1500000"}
  %c = f32[1024] all-reduce(%b), replica_groups={{0,1,2,3}}
  %d = f32[1024] sort(%c)
}
"""


def test_seconds_are_cycles_at_the_clock_and_bytes_at_the_rates():
    found = estimate.estimate(CompiledProgram(PROGRAM, 4), V5E)
    assert found is not None
    assert found.cycles["elementwise"] == 3_000_000
    assert found.seconds["elementwise"] == pytest.approx(3e6 / V5E.clock_hz)
    assert found.seconds["copies"] == pytest.approx(1.5e6 / V5E.clock_hz)
    # An all-reduce sends 3/4 of its 4 kB twice, at half of the links' rate.
    sent = 2 * 0.75 * 4096 / (V5E.ici_bytes_per_s / 2)
    assert found.seconds["collectives"] == pytest.approx(sent)
    assert found.unestimated == 1
    written = 4096 / V5E.hbm_bytes_per_s
    assert found.seconds["unestimated"] == pytest.approx(written)
    assert found.step_seconds == pytest.approx(sum(found.seconds.values()))


def test_a_program_without_estimated_cycles_has_no_estimate():
    program = CompiledProgram("ENTRY %main (x: f32[8]) -> f32[8] {\n}")
    assert estimate.estimate(program, V5E) is None
    gpu = CHIPS["NVIDIA H100"]
    assert estimate.estimate(CompiledProgram(PROGRAM), gpu) is None


def test_rates_hours_and_cost_of_a_phase():
    config = make_config()
    phase, mesh = config.phases[0], use_mesh(8, 1, 1)
    found = estimate.StepEstimate({}, {"matmul": 0.3, "copies": 0.2}, 0)
    rates = estimate.of_phase(found, config, 0, mesh, V5E, price=2.0)
    per_second = phase.global_batch_size / 0.5
    assert rates["sequences_per_second"] == pytest.approx(per_second)
    assert rates["sequences_per_second_per_chip"] == pytest.approx(per_second / 8)
    flops = estimate.model_flops(config, 0)
    assert rates["mfu"] == pytest.approx(flops / 0.5 / (8 * 197e12))
    assert rates["hours"] == pytest.approx(phase.num_steps * 0.5 / 3600)
    assert rates["cost"] == pytest.approx(rates["hours"] * 8 * 2)
    free = estimate.of_phase(found, config, 0, mesh, V5E, price=None)
    assert free["cost"] is None


def test_two_devices_of_tpu7x_are_one_chip():
    found = estimate.StepEstimate({}, {"matmul": 1.0}, 0)
    config, mesh = make_config(), use_mesh(8, 1, 1)
    rates = estimate.of_phase(found, config, 0, mesh, CHIPS["TPU7x"], price=1.0)
    assert rates["cost"] == pytest.approx(rates["hours"] * 4)


def test_model_flops_equal_those_in_the_log():
    config = make_config()
    phase = config.phases[0]
    per_sequence = train_flops_per_sequence(config.model, 97, phase)
    found = estimate.model_flops(config, 0)
    assert found == phase.global_batch_size * per_sequence
