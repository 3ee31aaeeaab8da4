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


@pytest.mark.parametrize(
    "name",
    # v4-12 has 6 chips, v4-4 is less than a host, v5p counts two cores per chip.
    ["v9:2x2", "v5e", "v5e:", "v9-8", "v4-12", "v4-4", "v5p-3", "v5e-0", "v5e-", ""],
)
def test_unknown_topology_error_names_valid_ones(name):
    with pytest.raises(ConfigError, match=r"not known; use local, .*16x16\), .*v4-8"):
        chips.devices(name)


@pytest.mark.parametrize(
    ("name", "slices"),
    # The slices are those of docs.cloud.google.com/tpu/docs, by name.
    [
        ("v3-8", (1, "v3", "2x2")),
        ("v4-32", (1, "v4", "2x2x4")),
        ("v5litepod-1", (1, "v5e", "1x1")),
        ("v5e-64", (1, "v5e", "8x8")),
        ("2*v5litepod-256", (2, "v5e", "16x16")),
        ("v5p-2048", (1, "v5p", "8x8x16")),
        ("tpu7x-16", (1, "tpu7x", "2x2x2")),
        ("4*v5e:2x4", (4, "v5e", "2x4")),
    ],
)
def test_google_names_of_slices(name, slices):
    assert chips.parse_slices(name) == slices


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h100", ("NVIDIA H100", 1)),
        ("8*4090", ("NVIDIA GeForce RTX 4090", 8)),
        ("2*v5e-64", ("TPU v5 lite", 128)),
        ("tpu7x:2x2x1", ("TPU7x", 8)),
        ("v4-12", None),
        ("v5e:0x4", None),
        ("t4", None),
        ("0*h100", None),
    ],
)
def test_number_of_devices_of_a_name(name, found):
    assert chips.count(name) == found


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
    [("v3:2x2", 8, 4), ("v4-8", 4, 4), ("v5e:16x16", 256, 256), ("tpu7x:2x2x1", 8, 4)],
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
    assert chips.chip_of("NVIDIA L4").peak_flops == 121e12
    assert chips.chip_of("NVIDIA L40S").peak_flops == 362e12
    assert chips.chip_of("cpu") is None


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
