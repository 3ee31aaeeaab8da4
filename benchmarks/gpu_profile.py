"""Measures the time of the kernels of a train step on one GPU, by kind of kernel.

    python -m benchmarks.gpu_profile [--size=base|large] [--batch=512] [--length=128]
        [--packed] [--layers=N] [--dropout=0.1] [--dtype=auto|float32|bfloat16]
        [--steps=3] [--list=0] >> benchmarks/results/gpu.jsonl

Runs the step of train_step.py under JAX's profiler, and prints a row with the
microseconds of a step in each kind of kernel. --list prints the slowest N kernels on
stderr. The rest of the step's time, between kernels, is not in the row.
"""

import argparse
import dataclasses
import glob
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable

import jax

from benchmarks import rows, train_step

# Kinds of kernels by parts of their names. XLA names its own fusions after operations.
KINDS = {
    "products": ("nvjet", "cublas", "cutlass", "gemm", "splitk"),
    "attention": ("attention_",),
    "dropout, sum and norm": ("norm_",),
    "GELU gradient": ("gelu_backward",),
}
OTHER = "XLA's fusions and copies"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Runs of a kernel in a profile."""

    name: str
    microseconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    train_step.add_case_arguments(parser, batch=512)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--list", type=int, default=0, help="kernels on stderr")
    args = parser.parse_args()
    device = jax.devices()[0]
    if device.platform != "gpu":
        print(f"gpu_profile needs a GPU; this is a {device.platform}", file=sys.stderr)
        sys.exit(2)
    config = train_step.make_config(args)
    run = train_step.our_step(config, train_step.make_batch(config))
    run()  # compiles
    found = profile(run, args.steps)
    for kernel in sorted(found, key=lambda x: -x.microseconds)[: args.list]:
        print(f"{kernel.microseconds:10.0f} us  {kernel.name}", file=sys.stderr)
    row = {
        "benchmark": "gpu_profile",
        "case": train_step.case_of(args, config),
        "value": round(sum(x.microseconds for x in found)),
        "unit": "us",
        "classes": by_kind(found),
        "device": device.device_kind,
        "versions": rows.versions(),
    }
    print(json.dumps(row), flush=True)


def profile(run, num_steps: int) -> list[Kernel]:
    """Returns the kernels of a step, with the mean time of `num_steps` steps."""
    with tempfile.TemporaryDirectory(prefix="bert_jax-profile-") as directory:
        with jax.profiler.trace(directory):
            for _ in range(num_steps):
                run()
        (path,) = glob.glob(f"{directory}/**/*.xplane.pb", recursive=True)
        planes = jax.profiler.ProfileData.from_file(path).planes
    times: Counter[str] = Counter()
    (plane,) = (plane for plane in planes if plane.name.startswith("/device:GPU:0"))
    for line in plane.lines:
        if "Stream" in line.name:  # other lines group the kernels of streams
            for event in line.events:
                times[event.name] += event.duration_ns / 1e3 / num_steps
    return [Kernel(name, time) for name, time in times.items()]


def by_kind(kernels: Iterable[Kernel]) -> dict[str, int]:
    """Returns the microseconds of each kind of kernel, the longest first."""
    times: Counter[str] = Counter()
    for kernel in kernels:
        times[kind_of(kernel.name)] += kernel.microseconds
    return {kind: round(time) for kind, time in times.most_common()}


def kind_of(name: str) -> str:
    for kind, parts in KINDS.items():
        if any(part in name.lower() for part in parts):
            return kind
    return OTHER


if __name__ == "__main__":
    main()
