"""Multi-process coordination: initialization and agreement.

Every run joins JAX's coordination service, including a run of one process, so that
there is one way to interrupt a run. JAX detects TPU pods, GKE and SLURM by itself;
elsewhere, the environment variables ENVIRONMENT identify the processes. Only process 0
writes to standard output; that of the others is discarded.
stopping.py ends the processes together when one of them fails.
"""

import ctypes
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import distributed  # the coordination client has no public name
from jax.experimental import multihost_utils

from bert_jax import storage
from bert_jax.distributed import settings, stopping
from bert_jax.errors import ConfigError

# The address of process 0 (host:port), the number of processes, and the index of this
# process.
ENVIRONMENT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")

JOIN_SECS = 300  # hosts of a pod start minutes apart
# A single process would lose itself when its machine sleeps: JAX aborts it.
ALONE_HEARTBEAT_SECS = 365 * 24 * 3600
SHUTDOWN_SECS = 60  # how long the processes wait for each other at the end of a run
# How long a file written on one host may take to appear on the others, despite caches.
SHARED_SECS = 60
# How long the others wait for a value of process 0, which may prepare a corpus first.
AGREE_SECS = 24 * 3600

T = TypeVar("T")


# ---------------------------------------------------------------------------- startup


def join(config: Any) -> None:
    """Joins the other processes of this run. Call it before devices are opened.

    The config is a dataclass, which must be that of process 0, see settings.py.
    """
    given = _processes_in_environment()
    limits: dict[str, Any] = {
        "initialization_timeout": JOIN_SECS,
        "heartbeat_timeout_seconds": stopping.HEARTBEAT_SECS,
        "shutdown_timeout_seconds": SHUTDOWN_SECS,
    }
    stopping.exit_when_aborted(
        f"not all processes of the run joined within {JOIN_SECS} s; start all"
        " of them, with the same JAX_COORDINATOR_ADDRESS"
    )
    try:
        jax.distributed.initialize(**given, **limits)
    except ValueError as error:
        if "coordinator_address should be defined" not in str(error):
            raise
        limits["heartbeat_timeout_seconds"] = ALONE_HEARTBEAT_SECS
        jax.distributed.initialize(**_one_process(), **limits)
    if num_processes() == 1:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)  # no peer can cause an abort
        _leave_service_running()
        return
    stopping.exit_when_aborted(stopping.LOST_MESSAGE)
    stopping.watch()
    if distributed.global_state.process_id:
        # Redirect the file descriptor, because C++ libraries write to it as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    settings.check_same(config)


def _processes_in_environment() -> dict[str, Any]:
    address, *numbers = (os.environ.get(name) for name in ENVIRONMENT)
    if address is None and numbers == [None, None]:
        return {}
    host, _, port = (address or "").rpartition(":")
    are_numbers = all(number and number.isdigit() for number in (port, *numbers))
    if not host or not are_numbers:
        raise ConfigError(
            f"{', '.join(ENVIRONMENT)} in the environment are {address!r},"
            f" {numbers[0]!r}, {numbers[1]!r}; they must be HOST:PORT of process 0 and"
            " two integers, or all be unset"
        )
    num_processes, process_id = (int(number or 0) for number in numbers)
    if process_id >= num_processes:
        raise ConfigError(
            f"JAX_PROCESS_ID={process_id} must be below"
            f" JAX_NUM_PROCESSES={num_processes}"
        )
    return {
        "coordinator_address": address,
        "num_processes": num_processes,
        "process_id": process_id,
    }


def _one_process() -> dict[str, Any]:
    # By default, simulated devices would communicate through sockets.
    jax.config.update("jax_cpu_collectives_implementation", None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return {
        "coordinator_address": address,
        "coordinator_bind_address": address,  # not reachable from other hosts
        "num_processes": 1,
        "process_id": 0,
    }


def _leave_service_running() -> None:
    """Keeps JAX from shutting down the coordination service of a one-process run.

    No other process waits for the service, and gRPC's server may abort when JAX shuts
    it down: "Check failed: queue.Pop() == nullptr", seen once, at the end of a
    completed run (jaxlib 0.10). An extra reference keeps the service alive until the
    process ends.
    """
    state = distributed.global_state
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(state.service))
    state.service = None


def num_processes() -> int:
    """Returns jax.process_count() without opening devices."""
    return distributed.global_state.num_processes or 1


def any_process(value: bool) -> bool:
    """Returns whether `value` is True in any process. All processes must call it."""
    if num_processes() == 1:
        return value
    return bool(np.any(multihost_utils.process_allgather(np.array(value))))


def from_process_0(value: T) -> T:
    """Returns the number or tuple of numbers `value` of process 0. All must call it."""
    if num_processes() == 1:
        return value
    found: Any = multihost_utils.broadcast_one_to_all(jax.tree.map(np.asarray, value))
    return jax.tree.map(lambda mine, theirs: type(mine)(theirs), value, found)


# -------------------------------------------------------------------------- agreement


def is_first() -> bool:
    """Returns whether this is process 0, the only one that prints and writes files."""
    return jax.process_index() == 0


def agree(name: str, make: Callable[[], str]) -> str:
    """Returns the result of `make` in process 0, in every process.

    If `make` raises an error, `stopping` ends the processes that wait for its result. A
    name is used once in a run.
    """
    if num_processes() == 1:
        return make()
    key = f"bert_jax/{name}"
    if is_first():
        _client().key_value_set(key, make())
    return _client().blocking_key_value_get(key, AGREE_SECS * 1000)


def _client() -> Any:
    return distributed.global_state.client


def first_then_others(name: str, do: Callable[[], T]) -> T:
    """Calls `do` in process 0, where it may write files, and then in the others."""
    results: list[T] = []

    def first() -> str:
        results.append(do())
        return ""

    agree(name, first)
    return results[0] if results else do()


def check_same(name: str, value: str, mistake: str) -> None:
    """Raises ConfigError(mistake) in processes whose value is not that of process 0."""
    agreed = agree(name, lambda: value)
    if value != agreed:
        raise ConfigError(
            f"{mistake} (process {jax.process_index()}: {value}, process 0: {agreed})"
        )


def make_shared(flag: str, directory: str) -> None:
    """Creates the directory that --flag names and verifies that all hosts share it."""

    def mark() -> str:
        name = f".shared-{secrets.token_hex(8)}"
        try:
            storage.make_directory(directory)
            if num_processes() > 1 or storage.is_remote(directory):
                storage.write(os.path.join(directory, name), b"")
        except OSError as error:
            raise ConfigError(
                f"--{flag}={directory}: {error.strerror}; use another path"
            ) from None
        return name

    marker = os.path.join(directory, agree(f"directory {flag}", mark))
    seen = f"bert_jax/directory {flag} is seen by/"
    if is_first():
        try:
            while not wait_for(lambda: _num_keys(seen) == num_processes() - 1):
                pass
        finally:
            storage.remove(marker)
    elif wait_for(lambda: storage.exists(marker)):
        _client().key_value_set(f"{seen}{jax.process_index()}", "")
    else:
        raise ConfigError(
            f"--{flag}={directory} of process {jax.process_index()} is not that of"
            " process 0; use a directory that all hosts share"
        )


def _num_keys(directory: str) -> int:
    return len(_client().key_value_dir_get(directory)) if num_processes() > 1 else 0


def wait_for(is_there: Callable[[], bool]) -> bool:
    """Waits for another host; returns False after SHARED_SECS.

    Raises ConfigError if another process has failed, so that this one can clean up.
    """
    deadline = time.monotonic() + SHARED_SECS
    while not is_there():
        stopping.raise_error_elsewhere()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def barrier(name: str) -> None:
    """Waits for all processes to call it with this name; a name is used once."""
    if num_processes() > 1:
        _client().wait_at_barrier(f"bert_jax/{name}", 2 * SHARED_SECS * 1000)
