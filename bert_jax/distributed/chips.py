"""Specifications of accelerators, and abstract devices of TPU slices.

A device is a JAX device: a chip, or half a chip on TPU v2, v3 and TPU7x. libtpu
describes any TPU slice and compiles for it on any x86-64 Linux machine, without a TPU.
"""

import dataclasses
import importlib.util
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from bert_jax.distributed.devices import num_tpu_hosts, open_devices, set_libtpu_stack
from bert_jax.errors import ConfigError

GIB = 2**30
LAYERS_TO_COMPILE = 24
LOCAL = "local"
EXAMPLES = {
    "v2": "v2:4x4",
    "v3": "v3:4x4",
    "v4": "v4:4x4x4",
    "v5e": "v5e:16x16",
    "v5p": "v5p:4x4x4",
    "v6e": "v6e:16x16",
    "tpu7x": "tpu7x:4x4x4",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Data-sheet numbers of one device, which is 1 / devices_per_chip of a chip."""

    # The fields after devices_per_chip are given for TPUs only.

    peak_flops: float  # dense bfloat16 FLOP/s
    devices_per_chip: int = 1
    flops_per_cycle: int = 0  # bfloat16, all matrix units of a device
    hbm_gib: float = 0.0  # available to a program: the smaller of two libtpu versions
    hbm_bytes_per_s: float = 0.0
    ici_bytes_per_s: float = 0.0  # to other chips, all links, both directions
    # Host memory that libtpu was measured to take while it compiled BERT-large, which
    # has LAYERS_TO_COMPILE layers; not measured for v2 and v3.
    gib_to_compile: float = 0.0

    @property
    def clock_hz(self) -> float:
        """The clock rate, which converts the compiler's cycles to seconds.

        It is the data sheet's FLOP/s divided by the FLOPs of a cycle, which are 2 for
        each cell of the matrix units (v5e: 4 units of 128 x 128). The FLOPs of a cycle
        were inferred from libtpu's estimate for an 8192-cubed product, which reaches
        70% (v6e) to 98% of them, as a test checks. The result agrees with the published
        clocks: 0.94 GHz for v3, 1.05 for v4, 1.5 for v5e.
        """
        return self.peak_flops / self.flops_per_cycle


# Keys are prefixes of JAX's device_kind. Sources: docs.cloud.google.com/tpu/docs (v2 to
# 7x), except for hbm_gib, from libtpu's out-of-memory errors, and for the links of v2
# and v3 (4 links of 62 and 82 GB/s each way; Jouppi et al. 2020) and of v4 (6 links of
# 50 GB/s; Jouppi et al. 2023). NVIDIA: data sheets (SXM).
CHIPS = {
    "TPU v2": Chip(
        peak_flops=22.5e12,
        devices_per_chip=2,
        flops_per_cycle=2**15,
        hbm_gib=7.48,
        hbm_bytes_per_s=350e9,
        ici_bytes_per_s=248e9,
        gib_to_compile=13,
    ),
    "TPU v3": Chip(
        peak_flops=61.5e12,
        devices_per_chip=2,
        flops_per_cycle=2**16,
        hbm_gib=15.48,
        hbm_bytes_per_s=450e9,
        ici_bytes_per_s=328e9,
        gib_to_compile=13,
    ),
    "TPU v4": Chip(
        peak_flops=275e12,
        flops_per_cycle=2**18,
        hbm_gib=30.75,
        hbm_bytes_per_s=1200e9,
        ici_bytes_per_s=600e9,
        gib_to_compile=13,
    ),
    "TPU v5 lite": Chip(
        peak_flops=197e12,
        flops_per_cycle=2**17,
        hbm_gib=15.75,
        hbm_bytes_per_s=819e9,
        ici_bytes_per_s=400e9,
        gib_to_compile=4.5,
    ),
    "TPU v5": Chip(
        peak_flops=459e12,
        flops_per_cycle=2**18,
        hbm_gib=95.73,
        hbm_bytes_per_s=2765e9,
        ici_bytes_per_s=1200e9,
        gib_to_compile=5.0,
    ),
    "TPU v6 lite": Chip(
        peak_flops=918e12,
        flops_per_cycle=2**19,
        hbm_gib=31.24,
        hbm_bytes_per_s=1638e9,
        ici_bytes_per_s=800e9,
        gib_to_compile=5.5,
    ),
    "TPU7x": Chip(
        peak_flops=1153.5e12,
        devices_per_chip=2,
        flops_per_cycle=2**19,
        hbm_gib=94.74,
        hbm_bytes_per_s=3690e9,
        ici_bytes_per_s=600e9,
        gib_to_compile=5.0,
    ),
    "NVIDIA A100": Chip(peak_flops=312e12),
    "NVIDIA H100": Chip(peak_flops=989e12),
    "NVIDIA H200": Chip(peak_flops=989e12),
}


def chip_of(device_kind: str) -> Chip | None:
    """Returns the specification of a JAX device_kind, or None if it is not in CHIPS."""
    device_kind = device_kind.replace("TPU v5e", "TPU v5 lite")  # JAX uses both names
    for name, chip in CHIPS.items():
        if device_kind.startswith(name):
            return chip
    return None


def devices(name: str) -> list[Any]:
    """Returns the devices of a TPU slice, or of this machine.

    Args:
      name: the generation and the side lengths in chips, for example v5e:16x16; several
        slices joined by the data centre's network, for example 4*v5e:16x16; or
        "local" for the devices of this machine.

    Raises:
      ConfigError: if there is no such slice, libtpu is not installed, or
        `open_devices` fails.
    """
    if name == LOCAL:
        if (num_hosts := num_tpu_hosts()) > 1:
            raise ConfigError(
                f"--topology={LOCAL}, but this host's TPU can only be opened by all"
                f" {num_hosts} hosts together; name the slice, for example"
                f" --topology={EXAMPLES['v5e']}"
            )
        open_devices()
        return jax.devices()
    match = re.fullmatch(r"(?:([1-9]\d*)\*)?((\w+):(\d+(?:x\d+)+))", name)
    if not match or match[3] not in EXAMPLES:
        raise ConfigError(
            f"--topology={name} is not known; use one of"
            f" {', '.join(EXAMPLES.values())} (other sizes work as well, and several"
            f" slices, as in 2*v5e:16x16), or {LOCAL}"
        )
    if not importlib.util.find_spec("libtpu"):
        raise ConfigError(
            f"--topology={name} needs the TPU compiler, libtpu, which is not installed;"
            " pip install -r requirements-tpu.txt, or use --topology=local"
        )
    _prepare_libtpu()
    num_slices, slice_name, generation, sides = match.groups()
    try:
        return topologies.get_topology_desc(
            platform="tpu",
            topology_name=slice_name,
            num_slices=int(num_slices or 1),
            **_options(generation, sides),
        ).devices
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        raise ConfigError(
            f"--topology={name}: {reason}; try {EXAMPLES[generation]}"
        ) from None


def _options(generation: str, sides: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if generation == "v4":  # as JAX runs v4: a device is a chip, not one of its cores
        options["chip_config_name"] = "megacore"
    if set(sides) <= {"1", "x"}:  # one chip on its host; the default is 2 x 2
        options["chips_per_host_bounds"] = (1, 1, 1)
    return options


def _prepare_libtpu() -> None:
    """Configures libtpu to compile only, without devices or a metadata server."""
    set_libtpu_stack()
    jax.config.update("jax_platforms", "cpu")
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # two processes may compile side by side
        # Without these two, libtpu logs that it cannot determine its environment.
        "TPU_ACCELERATOR_TYPE": "v5e-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }.items():
        os.environ.setdefault(name, value)
