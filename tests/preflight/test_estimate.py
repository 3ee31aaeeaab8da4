"""Seconds, rates, hours and cost of a step are computed from its cycles."""

import pytest

from bert_jax.distributed.chips import CHIPS
from bert_jax.monitoring.throughput import train_flops_per_sequence
from bert_jax.preflight import estimate
from bert_jax.preflight.compile import Trial
from bert_jax.preflight.hlo import CompiledProgram
from tests.conftest import make_config

V5E = CHIPS["TPU v5 lite"]
PROGRAM = """\
ENTRY %main (x: f32[1024]) -> f32[1024] {
  %a = f32[1024] fusion(%x), backend_config={"estimated_cycles":"3000000"}
  %b = f32[1024] copy(%a), backend_config={"estimated_cycles":"1500000"}
  %c = f32[1024] all-reduce(%b), replica_groups={{0,1,2,3}}
  %d = f32[1024] sort(%c)
}
"""


def phase_estimate(chip=V5E, num_devices=4, price=None, text=PROGRAM):
    trial = Trial(make_config(), 2, {}, CompiledProgram(text, num_devices))
    return estimate.estimate(trial, 0, chip, price)


def test_seconds_are_cycles_at_the_clock_and_bytes_at_the_rates():
    found = phase_estimate()
    assert found is not None
    assert found["cycles"]["elementwise"] == 3_000_000
    seconds = found["seconds"]
    assert seconds["copies"] == pytest.approx(1.5e6 / V5E.clock_hz)
    # An all-reduce sends 3/4 of its 4 kB twice, at half of the links' rate.
    sent = 2 * 0.75 * 4096 / (V5E.ici_bytes_per_s / 2)
    assert seconds["collectives"] == pytest.approx(sent)
    assert found["operations_without_estimate"] == 1
    written = 4096 / V5E.hbm_bytes_per_s
    assert seconds["elementwise"] == pytest.approx(3e6 / V5E.clock_hz + written)
    assert found["step_seconds"] == pytest.approx(sum(seconds.values()))


def test_a_pallas_kernel_takes_the_time_of_its_flops():
    kernel = """\
  %k = f32[1024] custom-call(%a), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(step)/attention/call"}, \
backend_config={"cost_estimate":{"flops":"197000000000","transcendentals":"0"}}
}
"""
    text = PROGRAM.removesuffix("}\n") + kernel
    found = phase_estimate(text=text)
    assert found["operations_without_estimate"] == 2
    assert found["seconds"]["attention"] == pytest.approx(1e-3)


def test_a_program_without_estimated_cycles_has_no_estimate():
    assert phase_estimate(text="ENTRY %main (x: f32[8]) -> f32[8] {\n}") is None
    assert phase_estimate(chip=None) is None


def test_rates_hours_and_cost_of_a_phase():
    phase = make_config().phases[0]
    found = phase_estimate(num_devices=8, price=2.0)
    step = found["step_seconds"]
    per_second = phase.global_batch_size / step
    assert found["sequences_per_second"] == pytest.approx(per_second)
    assert found["sequences_per_second_per_chip"] == pytest.approx(per_second / 8)
    flops = estimate.model_flops(make_config(), 0)
    assert found["mfu"] == pytest.approx(flops / step / (8 * 197e12))
    assert found["hours"] == pytest.approx(phase.num_steps * step / 3600)
    assert found["cost"] == pytest.approx(found["hours"] * 8 * 2)
    assert phase_estimate()["cost"] is None


def test_two_devices_of_tpu7x_are_one_chip():
    found = phase_estimate(CHIPS["TPU7x"], num_devices=8, price=1.0)
    assert found["cost"] == pytest.approx(found["hours"] * 4)


def test_model_flops_equal_those_in_the_log():
    config = make_config()
    phase = config.phases[0]
    per_sequence = train_flops_per_sequence(config.model, 97, phase)
    found = estimate.model_flops(config, 0)
    assert found == phase.global_batch_size * per_sequence
