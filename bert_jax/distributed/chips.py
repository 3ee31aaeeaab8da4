"""What a kind of device can do, and the devices of TPU slices that are not here.

A device is what jax calls one: a chip, but half a chip of v2, v3 and TPU7x. libtpu
describes any slice, and compiles for it on any Linux, x86-64.
"""

import dataclasses
import importlib.util
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from bert_jax.distributed.devices import give_libtpu_stack, num_tpu_hosts, open_devices
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

    peak_flops: float  # dense bfloat16 FLOP/s
    devices_per_chip: int = 1
    # Of TPUs alone:
    flops_per_cycle: int = 0  # bfloat16, of all matrix units of a device
    hbm_gib: float = 0.0  # that libtpu gives to a program, the less of two versions
    hbm_bytes_per_s: float = 0.0
    ici_bytes_per_s: float = 0.0  # to other chips, all links, both directions
    # Of the machine that compiles, as libtpu was seen to take for BERT-large, which has
    # LAYERS_TO_COMPILE layers; of v2 and v3 not seen.
    gib_to_compile: float = 0.0

    @property
    def clock_hz(self) -> float:
        """What turns the compiler's cycles into seconds.

        The data sheet's FLOP/s by those of a cycle, 2 for each cell of the matrix units
        (v5e: 4 of 128 x 128). How many a cycle has was told from libtpu's estimate of
        an 8192-cubed product, which is 70% (v6e) to 98% of it, a test. The outcome is
        the clocks that are published: 0.94 GHz of v3, 1.05 of v4, 1.5 of v5e.
        """
        return self.peak_flops / self.flops_per_cycle


# By the start of jax's device_kind. Sources: docs.cloud.google.com/tpu/docs (v2 .. 7x)
# but for hbm_gib, which is what libtpu's refusals say, and the links of v2 and v3 (4 of
# 62 and 82 GB/s each way; Jouppi et al. 2020) and v4 (6 of 50; 2023). NVIDIA: data
# sheets (SXM).
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
    """Returns the numbers of jax's device_kind, None where there is no data sheet."""
    device_kind = device_kind.replace("TPU v5e", "TPU v5 lite")  # jax knows both
    for name, chip in CHIPS.items():
        if device_kind.startswith(name):
            return chip
    return None


def devices(name: str) -> list[Any]:
    """Returns the devices of a slice such as v5e:16x16 (chips), or "local": those here.

    Of several slices that a data centre's network joins: 4*v5e:16x16.

    Raises:
      ConfigError: when there is no such slice, or libtpu is not installed; or what
        `open_devices` says of those here.
    """
    if name == LOCAL:
        if (num_hosts := num_tpu_hosts()) > 1:
            raise ConfigError(
                f"--topology={LOCAL}, but this host is one of {num_hosts} whose TPU"
                " chips open together; name the slice, for example"
                f" --topology={EXAMPLES['v5e']}"
            )
        open_devices()
        return jax.devices()
    match = re.fullmatch(r"(?:([1-9]\d*)\*)?((\w+):(\d+(?:x\d+)+))", name)
    if not match or match[3] not in EXAMPLES:
        raise ConfigError(
            f"--topology={name} is not known; give one of"
            f" {', '.join(EXAMPLES.values())} (other sizes work as well, and several"
            f" slices, as 2*v5e:16x16), or {LOCAL}"
        )
    if not importlib.util.find_spec("libtpu"):
        raise ConfigError(
            f"--topology={name} needs the TPU compiler, libtpu, which is not installed;"
            " pip install -r requirements-tpu.txt, or give --topology=local"
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
    if generation == "v4":  # as jax runs it: a device is a chip, not one of its cores
        options["chip_config_name"] = "megacore"
    if set(sides) <= {"1", "x"}:  # a host of one chip; else it has 2 x 2
        options["chips_per_host_bounds"] = (1, 1, 1)
    return options


def _prepare_libtpu() -> None:
    """Makes libtpu a compiler alone: it opens no device, asks no metadata server."""
    give_libtpu_stack()
    jax.config.update("jax_platforms", "cpu")
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # two processes may compile side by side
        # Else it complains that it does not know where it is.
        "TPU_ACCELERATOR_TYPE": "v5e-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }.items():
        os.environ.setdefault(name, value)
