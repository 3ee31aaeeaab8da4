"""Runs a training in several processes of this machine, as a pod does in many hosts.

    python launch/local.py --processes=4 --devices_per_process=2
        [--command=train|finetune] --config=configs/X.py [--workdir=DIR]
        [--config.KEY=VALUE ...]

The processes are real ones, with JAX's own coordination and CPU collectives between
them; what simulates is the devices. What is no flag of this file goes to
`python -m bert_jax.train`, or to the other command. SIGTERM and Ctrl-C are passed on:
the run is saved and ends with 75; a second one ends it at once, as does the first where
processes have not joined yet (76). When a process ends badly, the others notice by
themselves; launch/README.md has the exit codes. A mistake that all of them find is told
once, and what XLA logs of a lost process only where the process itself does not say it.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NoReturn, TextIO

# An exit code that says more about what to do comes before one that says less.
SEVERITY = (2, 78, 77, 1, 76, 75)
LOST = 76
# After these a process has said in a line of its own why it ended.
TOLD = (0, 2, 75, 76, 77, 78)
# A line of XLA's log; those of its coordination service; and what they go on with.
LOGGED = re.compile(r"[IWEF]\d{4} [\d:.]+ +\d+ \S+:\d+\] ")
OF_LOST_PROCESS = re.compile(
    r"\S+ \S+ +\d+ (coordination_\w+\.cc|preemption_sync_manager\.cc"
    r"|client\.h:\d+\] Terminating process because the JAX distributed service)"
)
GOES_ON = re.compile(
    r"Additional GRPC error|:UNKNOWN:Error received from peer|\d+(,\d+)*$"
    r"|The tasks have crashed|RPC: /xla\.coordination"
    r"|\*\*\* Check failure stack trace|    @ |$"
)


def main() -> int:
    arguments, rest = parse()
    command = [sys.executable, "-m", f"bert_jax.{arguments.command}", *rest]
    address = f"localhost:{free_port()}"
    processes: list[subprocess.Popen] = []
    asked: list[bool] = []

    def stop(*_: object) -> None:
        """Asks all to save and stop; asked again, stops them."""
        for process in processes:
            process.send_signal(signal.SIGKILL if asked else signal.SIGTERM)
        if processes:
            asked.append(True)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for i in range(arguments.processes):
        processes.append(
            subprocess.Popen(
                command,
                env=environment(i, arguments, address),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # a terminal's Ctrl-C comes through `stop`
            )
        )
    told: dict[str, int] = {}
    errors = [Errors(i, told) for i in range(arguments.processes)]
    threads = []
    for process, of_process in zip(processes, errors, strict=True):
        for stream, read in (
            (process.stdout, pass_on),
            (process.stderr, of_process.pass_on),
        ):
            threads.append(threading.Thread(target=read, args=(stream,)))
            threads[-1].start()
    codes = wait(processes)
    for thread in threads:
        thread.join()
    for code, of_process in zip(codes, errors, strict=True):
        if code not in TOLD:
            of_process.show_held_back()
    if any(codes):
        print(f"processes ended with {', '.join(map(str, codes))}", file=sys.stderr)
    return exit_code(codes)


class Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, as the commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see --help\n")


def parse() -> tuple[argparse.Namespace, list[str]]:
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=positive, default=2, metavar="N")
    parser.add_argument("--devices_per_process", type=positive, default=1, metavar="N")
    parser.add_argument("--command", choices=["train", "finetune"], default="train")
    return parser.parse_known_args()


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def environment(i: int, arguments: argparse.Namespace, address: str) -> dict[str, str]:
    """Returns the environment of process i."""
    devices = arguments.devices_per_process
    flags = f"--xla_force_host_platform_device_count={devices}"
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(arguments.processes),
        "JAX_PROCESS_ID": str(i),
    }


def wait(processes: list[subprocess.Popen]) -> list[int]:
    """Returns the codes that the processes end with.

    One that SIGTERM ended among its imports has not joined the others, who would wait
    for it for minutes, and have nothing to save: they are ended.
    """
    while any(process.poll() is None for process in processes):
        if any(process.returncode == -signal.SIGTERM for process in processes):
            for process in processes:
                process.kill()
        time.sleep(0.1)
    return [process.returncode for process in processes]


def pass_on(stream: TextIO) -> None:
    """Writes lines as they come, but those about connections that were made."""
    for line in stream:
        if "peer ranks" not in line:
            sys.stdout.write(line)
            sys.stdout.flush()


class Errors:
    """What one process says on standard error."""

    def __init__(self, i: int, told: dict[str, int]):
        """Takes the number of the process, and who told which mistake, of all."""
        self._i, self._told = i, told
        self._held_back: list[str] = []
        self._is_of_lost_process = False  # the last line of XLA's log

    def pass_on(self, stream: TextIO) -> None:
        """Writes lines as they come, but those that may be of no use."""
        for line in stream:
            if self._is_noise(line):
                self._held_back.append(line)
            elif not self._is_told(line):
                self._write(line)

    def show_held_back(self) -> None:
        for line in self._held_back:
            self._write(line)

    def _is_noise(self, line: str) -> bool:
        if LOGGED.match(line):
            self._is_of_lost_process = bool(OF_LOST_PROCESS.match(line))
            return self._is_of_lost_process
        return self._is_of_lost_process and bool(GOES_ON.match(line))

    def _is_told(self, line: str) -> bool:
        """Returns whether another process has told this mistake."""
        if not line.startswith("error: "):
            return False
        return self._told.setdefault(line, self._i) != self._i  # at once, for threads

    def _write(self, line: str) -> None:
        sys.stderr.write(f"[{self._i}] {line}")
        sys.stderr.flush()


def exit_code(codes: list[int]) -> int:
    """Returns what the run as a whole ended with; killed processes are lost ones."""
    known = {LOST if code < 0 else code for code in codes} - {0}
    if not known:
        return 0
    return min(known, key=lambda code: (*SEVERITY, code).index(code))


if __name__ == "__main__":
    sys.exit(main())
