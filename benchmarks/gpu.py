"""Measures train steps on one GPU beside PyTorch, and the time of their kernels.

    python -m benchmarks.gpu [--size=base|large] [--batches=512,256] [--length=128]
        [--packed] [--layers=N] [--dropout=0.1] [--dtype=auto|float32|bfloat16]
        [--repeats=3] [--minutes=3] [--no_peer] >> FILE.jsonl

Runs benchmarks.train_step for each batch size: our step, and PyTorch with
`torch.compile` and fused AdamW. One that fails, runs out of memory or takes longer than
--minutes gives a line on stderr. Then prints the row of our best rate beside PyTorch's
best one, and a row "gpu_profile" with the microseconds of a step in each kind of
kernel, by JAX's profiler; the time between kernels is not in it.
"""

import argparse
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from typing import Any

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
PROFILED_STEPS = 3
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    train_step.add_case_arguments(parser)
    parser.add_argument("--batches", default="512,256")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=3, help="of a measurement")
    parser.add_argument("--no_peer", action="store_true")
    args = parser.parse_args()
    batches = args.batches.split(",")
    ours = {batch: measure(args, batch, "none") for batch in batches}
    args.batch = int(max(batches, key=lambda batch: rate(ours[batch])))
    best = ours[str(args.batch)]
    if best is None:
        sys.exit("no step of ours could be measured")
    if not args.no_peer:
        peers = [measure(args, batch, "alone") for batch in batches]
        if theirs := max(peers, key=rate):
            # Not measured in alternation, so the ratio is that of the medians.
            ratio = round(best["value"] / theirs["value"], 3)
            peer = {"peer": theirs["case"], "peer_value": theirs["value"]}
            row = best | peer | {"benchmark": "gpu", "ratio": ratio}
            print(json.dumps(row), flush=True)
    device = jax.devices()[0]  # from here on, this process uses memory of the GPU
    if device.platform != "gpu":
        sys.exit(f"the kernels are not profiled: this is a {device.platform}")
    print(json.dumps(profiled(args)), flush=True)


def rate(row: Row | None) -> float:
    return row["value"] if row else 0.0


def measure(args: argparse.Namespace, batch: str, peer: str) -> Row | None:
    """Prints and returns the row of train_step in a process, or None if it failed."""
    flags = [f"--batch={batch}"]
    for name in ("size", "length", "layers", "dropout", "dtype", "repeats"):
        if (value := getattr(args, name)) is not None:
            flags.append(f"--{name}={value}")
    flags += ["--packed"] * args.packed + ["--steps=5", f"--peer={peer}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.train_step", *flags],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # it runs its functions in processes of their own
    )
    reason = "failed, see above"
    try:
        stdout, _ = process.communicate(timeout=60 * args.minutes)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, reason = process.communicate()[0], "took too long"
    if process.returncode:
        print(f"{' '.join(flags)}: {reason}", file=sys.stderr, flush=True)
        return None
    print(stdout, end="", flush=True)
    return json.loads(stdout)


def profiled(args: argparse.Namespace) -> Row:
    """Returns the row with the kernels of a step."""
    config = train_step.make_config(args)
    run = train_step.our_step(config, train_step.make_batch(config))
    run()  # compiles
    times = profile(run)
    return {
        "benchmark": "gpu_profile",
        "case": train_step.case_of(args, config),
        "value": round(times.total()),
        "unit": "us",
        "classes": by_kind(times),
        "device": jax.devices()[0].device_kind,
        "versions": rows.versions(),
    }


def profile(run) -> Counter[str]:
    """Returns the mean microseconds of a step in each kernel."""
    with tempfile.TemporaryDirectory(prefix="bert_jax-profile-") as directory:
        with jax.profiler.trace(directory):
            for _ in range(PROFILED_STEPS):
                run()
        (path,) = glob.glob(f"{directory}/**/*.xplane.pb", recursive=True)
        planes = jax.profiler.ProfileData.from_file(path).planes
    times: Counter[str] = Counter()
    (plane,) = (plane for plane in planes if plane.name.startswith("/device:GPU:0"))
    for line in plane.lines:
        if "Stream" in line.name:  # other lines group the kernels of streams
            for event in line.events:
                times[event.name] += event.duration_ns / 1e3 / PROFILED_STEPS
    return times


def by_kind(times: Counter[str]) -> dict[str, int]:
    """Returns the microseconds of each kind of kernel, the longest first."""
    found: Counter[str] = Counter()
    for name, microseconds in times.items():
        has_part = (k for k, v in KINDS.items() if any(x in name.lower() for x in v))
        found[next(has_part, OTHER)] += microseconds
    return {kind: round(time) for kind, time in found.most_common()}


if __name__ == "__main__":
    main()
