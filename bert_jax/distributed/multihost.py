"""Multi-process coordination: initialization, agreement, shutdown and lost peers.

Every run joins JAX's coordination service, including a run of one process, so that
there is one way to interrupt a run. JAX detects TPU pods, GKE and SLURM by itself;
elsewhere, the environment variables ENVIRONMENT identify the processes. Only process 0
writes to standard output; that of the others is discarded.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax._src import distributed  # the coordination client has no public name
from jax.experimental import multihost_utils

from bert_jax import errors, storage
from bert_jax.errors import EXIT_USAGE, ConfigError, CorruptError, StorageError
from bert_jax.storage import FULL_DISK, USERS_ERRORS, lease

# The address of process 0 (host:port), the number of processes, and the index of this
# process.
ENVIRONMENT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")

JOIN_SECS = 300  # hosts of a pod start minutes apart
HEARTBEAT_SECS = 30  # a process without a heartbeat for this long is considered lost
# A single process would lose itself when its machine sleeps: JAX aborts it.
ALONE_HEARTBEAT_SECS = 365 * 24 * 3600
SHUTDOWN_SECS = 60  # how long the processes wait for each other at the end of a run
# How long a file written on one host may take to appear on the others, despite caches.
SHARED_SECS = 60
# How long the others wait for a value of process 0, which may prepare a corpus first.
AGREE_SECS = 24 * 3600

# Errors of CPU collectives and of the coordination service when a process is lost.
LOST_CONNECTION = re.compile(
    r"Gloo .*(Connection (closed|reset) by peer|Broken pipe)"
    r"|UNAVAILABLE: .*coordination",
    re.DOTALL,
)
LOST_MESSAGE = (
    "error: another process of the run is gone; rerun the same command to resume from"
    " the last checkpoint"
)

T = TypeVar("T")


# ------------------------------------------------------------- startup and shutdown


def join() -> None:
    """Joins the other processes of this run. Call it before devices are opened.

    Raises:
      ConfigError: if the environment variables ENVIRONMENT are invalid.
    """
    given = _processes_in_environment()
    limits: dict[str, Any] = {
        "initialization_timeout": JOIN_SECS,
        "heartbeat_timeout_seconds": HEARTBEAT_SECS,
        "shutdown_timeout_seconds": SHUTDOWN_SECS,
    }
    _exit_when_aborted(
        f"error: not all processes of the run joined within {JOIN_SECS} s; start all"
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
    process_id = distributed.global_state.process_id
    _exit_when_aborted(
        f"process {process_id}: aborted, most likely because another process of the run"
        " is gone; rerun the same command to resume from the last checkpoint"
    )
    if process_id:
        # Redirect the file descriptor, because C++ libraries write to it as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _processes_in_environment() -> dict[str, Any]:
    """Returns arguments of jax.distributed.initialize from the environment, if set."""
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
    """Returns arguments of jax.distributed.initialize for a run of one process."""
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


@dataclasses.dataclass
class _Abort:
    """The message and exit code for when XLA aborts this process at a lost peer."""

    message: str
    exit_code: int = errors.EXIT_LOST
    handler: Any = None  # keeps the callback alive: C holds no reference


_abort = _Abort("")


def _exit_when_aborted(message: str) -> None:
    """Prints `message` and exits when XLA aborts this process.

    XLA's coordination service aborts every process of a run when one is lost or does
    not join. Its error callback cannot be used from Python (std::bad_cast in jaxlib
    0.10), so SIGABRT is handled instead; XLA has written the reason to standard error
    by then.
    """

    def aborted(_: int) -> None:
        _print_and_exit(_abort.message, _abort.exit_code)

    _abort.message = message
    _abort.handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)
    ctypes.CDLL(None).signal(signal.SIGABRT, _abort.handler)


_is_exiting = threading.Lock()


def _print_and_exit(message: str, exit_code: int) -> NoReturn:
    """Ends this process with a message; only the first thread to call it prints."""
    if not _is_exiting.acquire(blocking=False):
        threading.Event().wait()
    try:
        print(message, file=sys.stderr, flush=True)
    finally:  # exit even if stderr is closed
        os._exit(exit_code)


def may_be_lost_peer(error: Exception) -> bool:
    """Returns whether a lost process may be the cause of an error."""
    is_of_runtime = isinstance(error, jax.errors.JaxRuntimeError)
    return num_processes() > 1 and (is_of_runtime or _is_lost_connection(error))


def _is_lost_connection(error: Exception) -> bool:
    # Not by type: a collective may raise a ValueError.
    return bool(LOST_CONNECTION.search(str(error)))


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Ends a process of several that fails, without waiting for the others to end."""
    try:
        yield
    except ConfigError as error:
        # The other processes may not fail. XLA then aborts this process while it waits
        # for them at exit.
        _abort.exit_code = error.exit_code
        _abort.message = "the other processes of the run are stopped as well"
        raise
    except Exception as error:
        if num_processes() == 1 or isinstance(error, errors.Interrupted | StorageError):
            raise
        if isinstance(error, OSError) and error.errno in (*FULL_DISK, *USERS_ERRORS):
            _abort.exit_code = EXIT_USAGE  # and one line, as for a ConfigError
            _abort.message = "the other processes of the run are stopped as well"
            raise
        _flush()
        if _is_lost_connection(error):
            _print_and_exit(LOST_MESSAGE, errors.EXIT_LOST)
        with contextlib.suppress(OSError):
            traceback.print_exc()
        if may_be_lost_peer(error):
            # If a peer is lost, the coordination service detects it in this time, and
            # ends this process with EXIT_LOST.
            time.sleep(HEARTBEAT_SECS + 15)
        _flush()
        os._exit(1)


def _flush() -> None:
    """Flushes standard output and error, and ignores closed pipes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


def exit_now(exit_code: int) -> NoReturn:
    """Ends this process without waiting for threads. Call it when the state is saved.

    A thread may be compiling the next phase, and XLA cannot be interrupted. A normal
    exit of Python waits for that thread for minutes, longer than the grace period after
    SIGTERM may be; a daemon thread is not waited for, but makes Python abort. So this
    function only flushes the output, releases locks in buckets, removes temporary
    directories and disconnects from the other processes.
    """
    try:
        _flush()
        lease.release_all()
        storage.remove_scratch()
        jax.distributed.shutdown()
    finally:  # exit even if the coordinator is gone
        os._exit(exit_code)


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

    Args:
      name: a key for the value, used once in a run.
      make: called in process 0 only.

    Raises:
      ConfigError: in every process, if `make` raises it; CorruptError likewise.
    """
    if num_processes() == 1:
        return make()
    client, key = distributed.global_state.client, f"bert_jax/{name}"
    assert client is not None
    if not is_first():
        answer = json.loads(client.blocking_key_value_get(key, AGREE_SECS * 1000))
        if "mistake" in answer:
            kind = CorruptError if answer["is_corrupt"] else ConfigError
            raise kind(answer["mistake"])
        return answer["made"]
    try:
        made = make()
    except ConfigError as error:
        answer = {"mistake": str(error), "is_corrupt": isinstance(error, CorruptError)}
        client.key_value_set(key, json.dumps(answer))
        raise
    client.key_value_set(key, json.dumps({"made": made}))
    return made


def first_then_others(name: str, do: Callable[[], T]) -> T:
    """Calls `do` in process 0, where it may write files, and then in the others.

    Args:
      name: a key, used once in a run.
      do: called once in every process.

    Returns:
      The result of `do` in this process.
    """
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
    """Makes a directory, and verifies that all processes share it and can write to it.

    Args:
      flag: the name of the command-line flag, for error messages.
      directory: the value of the flag.

    Raises:
      ConfigError: if the directory cannot be made, or this process does not see a file
        that process 0 wrote there.
    """

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
    try:
        if num_processes() > 1:
            if not wait_for(lambda: storage.exists(marker)):
                raise ConfigError(
                    f"--{flag}={directory} of process {jax.process_index()} is not that"
                    " of process 0; use a directory that all hosts share"
                )
            barrier(f"directory {flag}")
    finally:
        if is_first():
            storage.remove(marker)


def wait_for(is_there: Callable[[], bool]) -> bool:
    """Waits for a file of another host; returns False if it does not appear in time."""
    deadline = time.monotonic() + SHARED_SECS
    while not is_there():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def barrier(name: str) -> None:
    """Waits for all processes to call it with this name; a name is used once."""
    client = distributed.global_state.client
    if client is not None and num_processes() > 1:
        client.wait_at_barrier(f"bert_jax/{name}", 2 * SHARED_SECS * 1000)
