"""Measures the seconds from the start of a training process to its first step.

    python -m benchmarks.startup [--config=tiny] [--corpus=DIR] [--repeats=3]
        [--arguments="--config.KEY=VALUE ..."]

A run with an empty compilation cache and one that finds its programs in the cache
alternate. Each has a new workdir and a corpus that is prepared already: the one in
--corpus, which is prepared first if there is none. Rows have the CPU seconds of the
process too, which depend less on other processes of the machine, and the seconds of
each stage that `train` reports.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import rows


class Start(NamedTuple):
    """The start of one process: its seconds to the end of the first step."""

    seconds: float
    cpu_seconds: float
    stages: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="tiny")
    parser.add_argument("--corpus", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--arguments", default="", help="for train, in one string")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        shared = [f"--config={args.config}", *shlex.split(args.arguments)]
        shared += [f"--config.data.corpus_dir={args.corpus or f'{scratch}/corpus'}"]
        prepare = [sys.executable, "-m", "bert_jax.prepare", *shared]
        subprocess.run(prepare, check=True, stdout=sys.stderr)
        starts: dict[str, list[Start]] = {"cold": [], "warm": []}
        for repeat in range(args.repeats):
            runs = Path(scratch) / f"runs{repeat}"
            for name in starts:
                arguments = [*shared, f"--workdir={runs}/{name}"]
                starts[name].append(start(arguments, cache=str(runs)))
            shutil.rmtree(runs)
    cold = [each.seconds for each in starts["cold"]]
    print_row(f"{args.config}, empty compilation cache", starts["cold"])
    print_row(
        f"{args.config}, second run", starts["warm"], "empty compilation cache", cold
    )


def start(arguments: list[str], cache: str) -> Start:
    """Runs `train` to the end of its first step, and kills it there."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "bert_jax.train", *arguments],
        # JAX's own variable would replace the default cache.
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": "", "XDG_CACHE_HOME": cache},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        line = next((x for x in process.stdout if x.startswith("start: ")), None)
        seconds = time.perf_counter() - began
        os.kill(process.pid, signal.SIGKILL)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = -signal.SIGKILL
    if line is None:
        sys.exit(f"train {shlex.join(arguments)} failed, see its messages above")
    found = re.findall(r"([a-z ]+) ([\d.]+) s", line.removeprefix("start: "))
    stages = {name.strip(): float(value) for name, value in found}
    return Start(seconds, usage.ru_utime + usage.ru_stime, stages)


def print_row(
    case: str,
    starts: list[Start],
    peer: str | None = None,
    peer_seconds: list[float] | None = None,
) -> None:
    names = dict.fromkeys(name for each in starts for name in each.stages)
    rows.print_row(
        "startup",
        case,
        "s",
        [each.seconds for each in starts],
        peer,
        peer_seconds,
        cpu_seconds=round(statistics.median(each.cpu_seconds for each in starts), 2),
        stages={
            name: statistics.median(each.stages.get(name, 0.0) for each in starts)
            for name in names
        },
    )


if __name__ == "__main__":
    main()
