"""Runs of two processes, in forks of one process that has imported the libraries.

    python -m tests.distributed.runs

Standard input is a JSON list of programs, and standard output what `run_pairs` returns.
All runs are started at once, because their processes wait for each other most of the
time.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import types
from pathlib import Path
from typing import NamedTuple, NoReturn

from tests.commands import ENV, ROOT

LIMIT_SECS = 200
WEIGHTS = "masked_lm=1.0, next_sentence=1.0, z_loss=0.0"
JOIN = f"multihost.join(config.LossWeightsConfig({WEIGHTS}))"


class Ended(NamedTuple):
    """The end of a process: its exit code and time, and what it has written."""

    code: int
    time: float
    stdout: str
    stderr: str


def run_pairs(programs: list[str]) -> list[list[Ended]]:
    """Runs each program in two processes; returns the ends of processes 0 and 1.

    Args:
      programs: bodies of commands, which find the names that `become` defines.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.distributed.runs"],
        env=ENV | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},  # as for users
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # its process group includes the forks
    )
    request = json.dumps([textwrap.dedent(program) for program in programs])
    try:
        answer, _ = process.communicate(request, timeout=LIMIT_SECS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return [[Ended(*ended) for ended in pair] for pair in json.loads(answer)]


def become(program: str, directory: Path, port: int, me: int) -> NoReturn:
    """Makes this fork a process of a run."""
    from bert_jax import cli, config, errors
    from bert_jax.distributed import multihost, stopping

    os.environ["JAX_COORDINATOR_ADDRESS"] = f"localhost:{port}"
    os.environ["JAX_NUM_PROCESSES"], os.environ["JAX_PROCESS_ID"] = "2", str(me)
    for fd in (1, 2):
        os.dup2(os.open(directory / str(fd), os.O_WRONLY | os.O_CREAT), fd)
    sys.argv = ["program"]
    modules: tuple[types.ModuleType, ...] = (config, errors, multihost)
    modules += (stopping, os, sys, time)
    names = {module.__name__.split(".")[-1]: module for module in modules}
    cli.run_and_leave(lambda: exec(program, {"me": me, **names}), "")
    sys.exit()


def main() -> None:
    import bert_jax.cli  # noqa: F401
    from launch.local import free_port
    from tests.warm import fork

    programs, scratch = json.load(sys.stdin), Path(tempfile.mkdtemp())
    places, ended = {}, {}
    ports: set[int] = set()  # a port that was free may be drawn again
    while len(ports) < len(programs):
        ports.add(free_port())
    for run, (program, port) in enumerate(zip(programs, ports, strict=True)):
        for me in (0, 1):
            directory = scratch / f"{run}-{me}"
            directory.mkdir()
            pid = fork()
            if pid == 0:
                become(program, directory, port, me)
            places[pid] = run, me, directory
    while len(ended) < len(places):
        pid, status = os.wait()
        run, me, directory = places[pid]
        texts = [(directory / str(fd)).read_text() for fd in (1, 2)]
        ended[run, me] = (os.waitstatus_to_exitcode(status), time.time(), *texts)
    pairs = [[ended[run, me] for me in (0, 1)] for run in range(len(programs))]
    print(json.dumps(pairs))


if __name__ == "__main__":
    main()
