"""Trains in several processes on this machine, like the hosts of a cluster.

    python launch/local.py --processes=4 --devices_per_process=2
        [--command=train|finetune] [--dry_run] --config=configs/X.py [--workdir=DIR]
        [--config.KEY=VALUE ...]

The processes use JAX's coordination service and CPU collectives; their devices are
simulated. Flags that are not listed go to `python -m bert_jax.train` (or finetune).
SIGTERM and Ctrl-C are forwarded: training saves a checkpoint and exits with 75. A
second signal kills the processes, as does the first one before they have joined (exit
code 76). An error that several processes report is printed once. --dry_run prints the
commands.
"""

import argparse
import errno
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NoReturn, TextIO

# If processes exit with different codes, the first of these is that of the run.
SEVERITY = (2, 78, 77, 1, 76, 75)
LOST = 76


def main() -> int:
    arguments, rest = parse()
    command = [sys.executable, "-m", f"bert_jax.{arguments.command}", *rest]
    address = f"localhost:{free_port()}"
    variables = [environment(i, arguments, address) for i in range(arguments.processes)]
    if arguments.dry_run:
        for added in variables:
            assignments = [f"{name}={value}" for name, value in added.items()]
            print(shlex.join(["env", *assignments, *command]))
        return 0
    processes: list[subprocess.Popen] = []
    stopping: list[bool] = []

    def stop(*_: object) -> None:
        """Sends SIGTERM to all processes; the second time, SIGKILL."""
        for process in processes:
            process.send_signal(signal.SIGKILL if stopping else signal.SIGTERM)
        if processes:
            stopping.append(True)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for added in variables:
        processes.append(
            subprocess.Popen(
                command,
                env=os.environ | added,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # a terminal's Ctrl-C arrives through `stop`
            )
        )
    reported: dict[str, int] = {}
    threads = []
    for i, process in enumerate(processes):
        threads.append(threading.Thread(target=pass_on, args=(process.stdout,)))
        threads.append(
            threading.Thread(target=pass_on_errors, args=(i, process.stderr, reported))
        )
    for thread in threads:
        thread.start()
    codes = wait(processes)
    for thread in threads:
        thread.join()
    if any(codes):
        print(f"processes ended with {', '.join(map(str, codes))}", file=sys.stderr)
    return exit_code(codes)


class Parser(argparse.ArgumentParser):
    """Reports a usage error in one line, like the commands."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see --help\n")


def parse() -> tuple[argparse.Namespace, list[str]]:
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=positive, default=2, metavar="N")
    parser.add_argument("--devices_per_process", type=positive, default=1, metavar="N")
    parser.add_argument("--command", choices=["train", "finetune"], default="train")
    parser.add_argument("--dry_run", action="store_true")
    return parser.parse_known_args()


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def free_port() -> int:
    """Returns a port that nothing uses, below those that Linux gives to connections."""
    with socket.socket() as free:
        while True:
            port = random.randrange(10_000, 32_000)
            try:
                free.bind(("localhost", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port


def environment(i: int, arguments: argparse.Namespace, address: str) -> dict[str, str]:
    """Returns the environment variables to add for process i."""
    devices = arguments.devices_per_process
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(arguments.processes),
        "JAX_PROCESS_ID": str(i),
    }


def wait(processes: list[subprocess.Popen]) -> list[int]:
    """Waits for all processes and returns their exit codes.

    A process that SIGTERM ended during its imports has not joined the others. They have
    nothing to save and would wait for it for minutes, so they are killed.
    """
    while any(process.poll() is None for process in processes):
        if any(process.returncode == -signal.SIGTERM for process in processes):
            for process in processes:
                process.kill()
        time.sleep(0.1)
    return [process.returncode for process in processes]


def pass_on(stream: TextIO) -> None:
    """Prints lines as they arrive, except Gloo's messages about connections."""
    for line in stream:
        if "peer ranks" not in line:
            sys.stdout.write(line)
            sys.stdout.flush()


def pass_on_errors(i: int, stream: TextIO, reported: dict[str, int]) -> None:
    """Prints lines of process i, except errors that another process has reported.

    Args:
      i: number of the process, printed before each line.
      stream: its standard error.
      reported: shared by all processes; the process that reported each error first.
    """
    for line in stream:
        if line.startswith("error: ") and reported.setdefault(line, i) != i:
            continue
        sys.stderr.write(f"[{i}] {line}")
        sys.stderr.flush()


def exit_code(codes: list[int]) -> int:
    """Returns the exit code of the run; a killed process counts as lost."""
    known = {LOST if code < 0 else code for code in codes} - {0}
    if not known:
        return 0
    return min(known, key=lambda code: (*SEVERITY, code).index(code))


if __name__ == "__main__":
    sys.exit(main())
