"""Finds the fastest XLA flags and batch sizes of a train step on one GPU.

    python -m benchmarks.gpu_sweep [--minutes=20] [--case_minutes=3] [--repeats=3]
        [--cases="base 128,large 128,base 512 packed"] [--batches=256,512] [--layers=N]
        [--no_peer] >> benchmarks/results/gpu.jsonl

For each case, measures every set of flags at the first batch size, then the fastest set
at the other ones, and PyTorch with `torch.compile` and fused AdamW at each. Then prints
the row of the case: our best rate compared with PyTorch's best one.

Each measurement is a process of `benchmarks.train_step`, whose row is printed with the
flags. One that fails, runs out of memory or takes too long gives a line on stderr, and
the sweep continues.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import Any

FLAGS = {
    "default": "",
    "Triton GEMM": "--xla_gpu_enable_triton_gemm=true",
    "latency hiding": "--xla_gpu_enable_latency_hiding_scheduler=true",
    "no command buffers": "--xla_gpu_enable_command_buffer=",
}
# Rows per batch, for the lengths of BERT; the first one is measured with all flags.
BATCHES = {
    "base 128": (512, 256, 1024),
    "large 128": (256, 128, 512),
    "base 512 packed": (128, 64, 256),
    "large 512 packed": (64, 32, 128),
}
ROW = dict[str, Any]


class Sweep:
    """Runs measurements until the time is over."""

    def __init__(self, args: argparse.Namespace):
        self._args = args
        self._end = time.monotonic() + 60 * args.minutes

    def measure(self, case: str, batch: int, flags: str, peer: str) -> ROW | None:
        """Returns the row of one measurement, or None if it failed."""
        size, length, *packed = case.split()
        command = ["benchmarks.train_step", f"--size={size}", f"--length={length}"]
        command += [f"--batch={batch}", f"--repeats={self._args.repeats}", "--steps=5"]
        command += ["--packed"] if packed else []
        command += [f"--layers={self._args.layers}"] if self._args.layers else []
        command += [f"--peer={peer}", *([] if peer == "none" else ["--peer_alone"])]
        given = os.environ.get("XLA_FLAGS", "")
        seconds = min(60 * self._args.case_minutes, self._end - time.monotonic())
        if seconds <= 0:
            return _failed(command, flags, "not run, --minutes are over")
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, "XLA_FLAGS": f"{given} {FLAGS[flags]}".strip()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # The benchmark runs its functions in processes of their own.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return _failed(command, flags, f"took more than {seconds:.0f} s")
        if process.returncode:
            lines = [x for x in stderr.splitlines() if "Error" in x or "error:" in x]
            return _failed(command, flags, (lines or ["no message"])[0][:200])
        row = json.loads(stdout.splitlines()[-1])
        if peer == "none":
            row["xla_flags"] = FLAGS[flags]
        print(json.dumps(row), flush=True)
        return row

    def fastest(
        self, case: str, measurements: list[tuple[int, str, str]]
    ) -> tuple[ROW, str] | None:
        """Returns the row with the highest rate, and its flags."""
        found = [(self.measure(case, *each), each[1]) for each in measurements]
        rows = [(row, flags) for row, flags in found if row]
        return max(rows, key=lambda each: each[0]["value"], default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--case_minutes", type=float, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default="base 128,large 128,base 512 packed")
    parser.add_argument("--batches", help="for all cases, instead of those of BATCHES")
    parser.add_argument("--layers", type=int, help="fewer layers, for a trial")
    parser.add_argument("--no_peer", action="store_true")
    args = parser.parse_args()
    sweep = Sweep(args)
    for case in args.cases.split(","):
        if not args.batches and case not in BATCHES:
            parser.error(
                f"--cases has {case!r}, which needs --batches; known are"
                f" {', '.join(BATCHES)}"
            )
        given = args.batches and tuple(map(int, args.batches.split(",")))
        sweep_case(sweep, case, given or BATCHES[case], has_peer=not args.no_peer)


def sweep_case(
    sweep: Sweep, case: str, batches: tuple[int, ...], *, has_peer: bool
) -> None:
    first, *others = batches
    best = sweep.fastest(case, [(first, flags, "none") for flags in FLAGS])
    flags = best[1] if best else "default"
    more = sweep.fastest(case, [(batch, flags, "none") for batch in others])
    ours = max(filter(None, (best, more)), key=lambda x: x[0]["value"], default=None)
    peers = [(batch, "default", "compiled") for batch in batches] if has_peer else []
    theirs = sweep.fastest(case, peers)
    if ours and theirs:
        print(json.dumps(compared(ours[0], theirs[0])), flush=True)


def compared(ours: ROW, theirs: ROW) -> ROW:
    """Returns our row, compared with the peer's row of another batch size.

    The rates were not measured in alternation, so the ratio is that of the medians.
    """
    return ours | {
        "benchmark": "gpu_sweep",
        "peer": theirs["case"],
        "peer_value": theirs["value"],
        "ratio": round(ours["value"] / theirs["value"], 3),
    }


def _failed(command: list[str], flags: str, reason: str) -> None:
    print(f"{shlex.join(command)}, {flags}: {reason}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
