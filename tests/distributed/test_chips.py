"""Tests of abstract TPU slices, and of chip specifications against the compiler."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

from bert_jax.distributed import chips
from bert_jax.errors import ConfigError
from bert_jax.preflight import hlo
from bert_jax.preflight.hlo import CompiledProgram
from tests.conftest import slow, use_mesh

SMALL = {
    "v2": "v2:2x2",
    "v3": "v3:2x2",
    "v4": "v4:2x2x1",
    "v5e": "v5e:1x1",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:1x1",
    "tpu7x": "tpu7x:2x2x1",
}
SLOW = [slow(name) for name in SMALL if name != "v5e"]


def test_local_devices_are_those_of_jax():
    assert chips.devices("local") == jax.devices()


@pytest.mark.parametrize("name", ["v9:2x2", "v5e", "v5e:", "v5litepod:2x2", ""])
def test_unknown_topology_error_names_valid_ones(name):
    with pytest.raises(ConfigError, match=r"not known; .* v5e:16x16.* or local"):
        chips.devices(name)


def test_missing_libtpu_error_names_the_install_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install -r requirements-tpu.txt"):
        chips.devices("v5e:2x2")


@pytest.mark.libtpu
def test_impossible_slice_error_gives_the_reason():
    with pytest.raises(ConfigError, match=r"v5e:3x3: .*divisible.*; try v5e:16x16"):
        chips.devices("v5e:3x3")


@pytest.mark.libtpu
@pytest.mark.parametrize(
    ("name", "count", "num_chips"),
    [
        ("v3:2x2", 8, 4),
        ("v4:2x2x1", 4, 4),
        ("v5e:1x1", 1, 1),
        ("v5e:16x16", 256, 256),
        ("v5p:4x4x4", 64, 64),
        ("v6e:16x16", 256, 256),
        ("tpu7x:2x2x1", 8, 4),
    ],
)
def test_number_of_devices_and_chips_of_a_slice(name, count, num_chips):
    devices = chips.devices(name)
    chip = chips.chip_of(devices[0].device_kind)
    assert len(devices) == count
    assert len({tuple(device.coords) for device in devices}) == num_chips
    assert chip.devices_per_chip == count // num_chips


def test_chip_of_device_kind():
    assert chips.chip_of("TPU v5 lite").peak_flops == 197e12
    assert chips.chip_of("TPU v5e").peak_flops == 197e12
    assert chips.chip_of("TPU v5").peak_flops == 459e12
    assert chips.chip_of("NVIDIA H200").hbm_gib == 0
    assert chips.chip_of("cpu") is None


@pytest.mark.parametrize(
    ("kind", "ghz"),
    # Published: Jouppi et al. 2020 (v2, v3) and 2023 (v4).
    [("TPU v2", 0.7), ("TPU v3", 0.94), ("TPU v4", 1.05)],
)
def test_clock_rates_equal_the_published_ones(kind, ghz):
    clock = chips.CHIPS[kind].clock_hz
    assert clock == pytest.approx(ghz * 1e9, rel=0.02)


@pytest.mark.libtpu
@pytest.mark.parametrize("name", ["v5e", *SLOW])
def test_cycles_of_a_large_product_match_its_flops(name):
    device = chips.devices(SMALL[name])[0]
    chip = chips.chip_of(device.device_kind)
    use_mesh(1, 1, 1, [device])
    n = 8192
    x = jax.ShapeDtypeStruct((n, n), jnp.bfloat16)
    program = CompiledProgram(jax.jit(jnp.matmul).lower(x, x).compile().as_text())
    share = 2 * n**3 / program.cycles["matmul"] / chip.flops_per_cycle
    assert 0.7 < share < 1.0
    assert sum(program.cycles.values()) == program.cycles["matmul"]


@pytest.mark.libtpu
@pytest.mark.parametrize("name", SMALL)
def test_memory_equals_that_of_libtpu_errors(name):
    device = chips.devices(SMALL[name])[0]
    use_mesh(1, 1, 1, [device])
    x = jax.ShapeDtypeStruct((2**18, 2**20), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError) as refused:
        jax.jit(lambda x: x + 1).lower(x).compile()
    needed, available = hlo.refused_bytes(str(refused.value))
    assert needed == pytest.approx(2 * 4 * 2**38, rel=0.2)
    chip = chips.chip_of(device.device_kind)
    # libtpu 0.0.42 and 0.0.50 print GiB with two digits, and differ by 0.01.
    assert available == pytest.approx(chip.hbm_gib * 2**30, abs=2**24)
