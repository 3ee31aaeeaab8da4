"""Specifications of accelerators, and abstract devices of TPU slices.

A device is a JAX device: a chip, or half a chip on TPU v2, v3 and TPU7x. libtpu
describes any TPU slice and compiles for it on any x86-64 Linux machine, without a TPU.
"""

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from bert_jax.distributed.devices import num_tpu_hosts, open_devices, set_libtpu_stack
from bert_jax.errors import ConfigError

GIB = 2**30
LOCAL = "local"
# The key of CHIPS and an example of the sides of a slice, by generation.
GENERATIONS = {
    "v2": ("TPU v2", "4x4"),
    "v3": ("TPU v3", "4x4"),
    "v4": ("TPU v4", "4x4x4"),
    "v5e": ("TPU v5 lite", "16x16"),
    "v5p": ("TPU v5", "4x4x4"),
    "v6e": ("TPU v6 lite", "16x16"),
    "tpu7x": ("TPU7x", "4x4x4"),
}
EXAMPLES = {name: f"{name}:{sides}" for name, (_, sides) in GENERATIONS.items()}
# Google's names count the chips of these generations, and the two cores of each chip of
# the others: v5litepod-64 has 64 chips, v4-64 has 32.
COUNTED_IN_CHIPS = ("v5e", "v6e")
SLICE_NAMES = (
    f"{', '.join(EXAMPLES.values())} (other sizes work as well, and several slices, as"
    " in 2*v5e:16x16), or Google's names, such as v4-8, v5litepod-64, v5p-8 and v6e-16"
)


@dataclasses.dataclass(frozen=True)
class Chip:
    """Data-sheet numbers of one device, which is 1 / devices_per_chip of a chip."""

    peak_flops: float  # dense bfloat16 FLOP/s
    hbm_bytes_per_s: float
    # The fields below are given for TPUs only.
    hbm_gib: float = 0.0  # available to a program: the smaller of two libtpu versions
    ici_bytes_per_s: float = 0.0  # to other chips, all links, both directions
    flops_per_cycle: int = 0  # bfloat16, all matrix units of a device
    devices_per_chip: int = 1
    # The share of peak_flops that the Pallas kernels for attention reach in the
    # compiler's schedule of BERT-base with 512 tokens, see docs/performance.md.
    kernel_share: float = 1.0

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


# Keys are prefixes of JAX's device_kind, values in the order of the fields of Chip.
# Sources: docs.cloud.google.com/tpu/docs (v2 to 7x), except for hbm_gib, from libtpu's
# out-of-memory errors, and for the links of v2 and v3 (4 links of 62 and 82 GB/s each
# way; Jouppi et al. 2020) and of v4 (6 links of 50 GB/s; Jouppi et al. 2023). NVIDIA:
# data sheets (SXM).
CHIPS = {
    "TPU v2": Chip(22.5e12, 350e9, 7.48, 248e9, 2**15, devices_per_chip=2),
    "TPU v3": Chip(61.5e12, 450e9, 15.48, 328e9, 2**16, devices_per_chip=2),
    "TPU v4": Chip(275e12, 1200e9, 30.75, 600e9, 2**18, kernel_share=0.17),
    "TPU v5 lite": Chip(197e12, 819e9, 15.75, 400e9, 2**17, kernel_share=0.69),
    "TPU v5": Chip(459e12, 2765e9, 95.73, 1200e9, 2**18, kernel_share=0.70),
    "TPU v6 lite": Chip(918e12, 1638e9, 31.24, 800e9, 2**19, kernel_share=0.21),
    "TPU7x": Chip(1153.5e12, 3690e9, 94.74, 600e9, 2**19, devices_per_chip=2),
    "NVIDIA A100": Chip(312e12, 1555e9),  # 80 GB: 2,039
    "NVIDIA H100": Chip(989e12, 3350e9),
    "NVIDIA H200": Chip(989e12, 4800e9),
    "NVIDIA L40S": Chip(362e12, 864e9),
    "NVIDIA L40": Chip(181e12, 864e9),
    "NVIDIA L4": Chip(121e12, 300e9),
    "NVIDIA GeForce RTX 4090": Chip(165e12, 1008e9),
}
GPUS = {kind.split()[-1].lower(): kind for kind in CHIPS if kind.startswith("NVIDIA")}
_COUNT = r"(?:([1-9]\d*)\*)?"  # a number of slices or GPUs, as in 2*v5e:16x16


def chip_of(device_kind: str) -> Chip | None:
    """Returns the specification of a JAX device_kind, or None if it is not in CHIPS."""
    device_kind = device_kind.replace("TPU v5e", "TPU v5 lite")  # JAX uses both names
    chips = (chip for name, chip in CHIPS.items() if device_kind.startswith(name))
    return next(chips, None)


def devices(name: str) -> list[Any]:
    """Returns the devices of a TPU slice, or of this machine for "local".

    The name has the generation and the side lengths in chips, as in v5e:16x16, or is
    Google's, v5litepod-256. 4*v5e:16x16 are four slices, joined by the data centre's
    network.
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
    slices = parse_slices(name)
    if not slices:
        raise ConfigError(f"--topology={name} is not known; use {LOCAL}, {SLICE_NAMES}")
    if not importlib.util.find_spec("libtpu"):
        raise ConfigError(
            f"--topology={name} needs the TPU compiler, libtpu, which is not installed;"
            " pip install -r requirements-tpu.txt, or use --topology=local"
        )
    _prepare_libtpu()
    num_slices, generation, sides = slices
    try:
        return topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{generation}:{sides}",
            num_slices=num_slices,
            **_options(generation, sides),
        ).devices
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        raise ConfigError(
            f"--topology={name}: {reason}; try {EXAMPLES[generation]}"
        ) from None


def parse_slices(name: str) -> tuple[int, str, str] | None:
    """Parses the name of TPU slices, see `devices`; None if there are no such slices.

    The result is (2, "v5e", "8x8") for both 2*v5e:8x8 and 2*v5litepod-64.
    """
    match = re.fullmatch(_COUNT + r"(\w+)(?::([1-9]\d*(?:x[1-9]\d*)+)|-(\d+))", name)
    if not match:
        return None
    num_slices, generation, sides, size = match.groups()
    generation = generation.replace("v5litepod", "v5e")
    if generation not in EXAMPLES:
        return None
    sides = sides or _sides(generation, int(size))
    return (int(num_slices or 1), generation, sides) if sides else None


def _sides(generation: str, size: int) -> str | None:
    """Returns the side lengths of the slice that Google names by its size, or None.

    They are powers of two, as equal as possible: v4-32 is 2x2x4.
    """
    num_sides = GENERATIONS[generation][1].count("x") + 1
    num_chips = size if generation in COUNTED_IN_CHIPS else size / 2
    exponent = round(math.log2(max(num_chips, 1)))
    least = 1 if num_sides == 2 else 4  # the chips of a host
    if num_chips != 2**exponent or num_chips < least:
        return None
    sides = [2 ** ((exponent + i) // num_sides) for i in range(num_sides)]
    return "x".join(map(str, sorted(sides, key=lambda n: n == 1)))  # 2x2x1


def count(name: str) -> tuple[str, int] | None:
    """Returns (key of CHIPS, number of devices) of a name, or None; opens no device.

    The name is of TPU slices, see `devices`, or of NVIDIA GPUs: one of GPUS, or 8*h100.
    """
    if slices := parse_slices(name):
        num_slices, generation, sides = slices
        kind, _ = GENERATIONS[generation]
        num_chips = num_slices * math.prod(map(int, sides.split("x")))
        return kind, num_chips * CHIPS[kind].devices_per_chip
    match = re.fullmatch(_COUNT + r"(\w+)", name)
    if not match or match[2] not in GPUS:
        return None
    return GPUS[match[2]], int(match[1] or 1)


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
