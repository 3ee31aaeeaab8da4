"""The processes of a run: how they find each other, agree, stop, and miss one another.

Every run joins JAX's coordination service, a run of one process as well, so that there
is one way to be interrupted. TPU pods, GKE and SLURM are found by JAX itself; elsewhere
the environment says who is who, see ENVIRONMENT. Process 0 speaks: what the others
write on standard output goes nowhere.
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
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax._src import distributed  # the coordination client has no public name
from jax.experimental import multihost_utils

from bert_jax import errors
from bert_jax.errors import EXIT_USAGE, ConfigError, DamagedError, StorageError
from bert_jax.storage import FULL_DISK, USERS_ERRORS

# Of process 0 (host:port), how many, and which of them.
ENVIRONMENT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")

JOIN_SECS = 300  # hosts of a pod start minutes apart
# A process that has not been heard of for so long is gone.
HEARTBEAT_SECS = 30
# For whoever comes late to the end of a run.
SHUTDOWN_SECS = 60
# A file made on one host is seen on all others by then, whatever is cached.
SHARED_SECS = 60
# How long process 0 may take over what the others wait for: a corpus, above all.
AGREE_SECS = 24 * 3600

# What a collective on CPUs and the coordination service say of a process that is gone.
LOST_CONNECTION = re.compile(
    r"Gloo .*(Connection (closed|reset) by peer|Broken pipe)"
    r"|UNAVAILABLE: .*coordination",
    re.DOTALL,
)
LOST_WORDS = (
    "error: another process of the run is gone; the same command goes on at the last"
    " checkpoint"
)

T = TypeVar("T")


# ------------------------------------------------------------------ from start to end


def join() -> None:
    """Joins the other processes of this run, before any device is touched.

    Raises:
      ConfigError: when the environment says something that cannot be.
    """
    given = _processes_in_environment()
    limits: dict[str, Any] = {
        "initialization_timeout": JOIN_SECS,
        "heartbeat_timeout_seconds": HEARTBEAT_SECS,
        "shutdown_timeout_seconds": SHUTDOWN_SECS,
    }
    _exit_when_aborted(
        f"error: not all processes of the run came within {JOIN_SECS} s; start all"
        " of them, with the same JAX_COORDINATOR_ADDRESS"
    )
    try:
        jax.distributed.initialize(**given, **limits)
    except ValueError as error:
        if "coordinator_address should be defined" not in str(error):
            raise
        jax.distributed.initialize(**_alone(), **limits)
    if num_processes() == 1:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)  # then it is a fault of ours
        _leave_service_running()
        return
    me = distributed.global_state.process_id
    _exit_when_aborted(
        f"process {me}: aborted, most often because another process of the run is gone;"
        " the same command goes on at the last checkpoint"
    )
    if me:
        # The descriptor, since C++ libraries write to it as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _processes_in_environment() -> dict[str, Any]:
    """Returns what the environment says to jax.distributed.initialize, or nothing."""
    address, *numbers = (os.environ.get(name) for name in ENVIRONMENT)
    if address is None and numbers == [None, None]:
        return {}
    host, _, port = (address or "").rpartition(":")
    are_numbers = all(number and number.isdigit() for number in (port, *numbers))
    if not host or not are_numbers:
        raise ConfigError(
            f"{', '.join(ENVIRONMENT)} in the environment are {address!r},"
            f" {numbers[0]!r}, {numbers[1]!r}; they must be HOST:PORT of process 0 and"
            " two whole numbers, or not be set at all"
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


def _alone() -> dict[str, Any]:
    # Else simulated devices would speak to each other through sockets.
    jax.config.update("jax_cpu_collectives_implementation", None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return {
        "coordinator_address": address,
        "coordinator_bind_address": address,  # nobody else is to come in
        "num_processes": 1,
        "process_id": 0,
    }


def _leave_service_running() -> None:
    """Keeps the coordination service of a run of one process up until the process ends.

    Nobody waits for it, and gRPC's server may abort where JAX shuts it down: "Check
    failed: queue.Pop() == nullptr", seen once, at the end of a run that was done
    (jaxlib 0.10). What Python would destroy with its last reference is never destroyed.
    """
    state = distributed.global_state
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(state.service))
    state.service = None


def num_processes() -> int:
    """Returns jax.process_count(), without looking for devices."""
    return distributed.global_state.num_processes or 1


@dataclasses.dataclass
class _Abort:
    """What it means when XLA aborts this process, which it does at a lost peer."""

    words: str
    exit_code: int = errors.EXIT_LOST
    handler: Any = None  # C keeps no reference


_abort = _Abort("")


def _exit_when_aborted(words: str) -> None:
    """Makes this process say `words` and exit where XLA would abort it.

    XLA's coordination service aborts every process of a run when one is gone or does
    not come. Its callback for that cannot be used from Python (std::bad_cast in jaxlib
    0.10), so the abort itself is caught; XLA has written why on standard error.
    """

    def aborted(_: int) -> None:
        _say_and_exit(_abort.words, _abort.exit_code)

    _abort.words = words
    _abort.handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)
    ctypes.CDLL(None).signal(signal.SIGABRT, _abort.handler)


_is_exiting = threading.Lock()


def _say_and_exit(words: str, exit_code: int) -> NoReturn:
    """Ends this process; of threads that find a reason the first one says it."""
    if not _is_exiting.acquire(blocking=False):
        threading.Event().wait()
    try:
        print(words, file=sys.stderr, flush=True)
    finally:  # whether or not anybody listens
        os._exit(exit_code)


def may_miss_another(error: Exception) -> bool:
    """Returns whether it may have been raised because another process is gone."""
    is_of_runtime = isinstance(error, jax.errors.JaxRuntimeError)
    return num_processes() > 1 and (is_of_runtime or _is_lost_connection(error))


def _is_lost_connection(error: Exception) -> bool:
    # Of a collective it may be a ValueError.
    return bool(LOST_CONNECTION.search(str(error)))


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Of several processes, one that fails does not wait for the others to end."""
    try:
        yield
    except ConfigError as error:
        # The others may not have made this mistake, and are not waited for long.
        _abort.exit_code = error.exit_code
        _abort.words = "the other processes of the run end as well"
        raise
    except Exception as error:
        if num_processes() == 1 or isinstance(error, errors.Interrupted | StorageError):
            raise
        if isinstance(error, OSError) and error.errno in (*FULL_DISK, *USERS_ERRORS):
            _abort.exit_code = EXIT_USAGE  # and one line, as of a ConfigError
            _abort.words = "the other processes of the run end as well"
            raise
        _flush()
        if _is_lost_connection(error):
            _say_and_exit(LOST_WORDS, errors.EXIT_LOST)
        with contextlib.suppress(OSError):
            traceback.print_exc()
        if may_miss_another(error):
            # Maybe a connection to a process that is gone: the coordination service
            # knows in a while, and ends this one with EXIT_LOST.
            time.sleep(HEARTBEAT_SECS + 15)
        _flush()
        os._exit(1)


def _flush() -> None:
    """Lets out what was printed, but where those who read it are gone."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        sys.stderr.flush()


def leave(exit_code: int) -> NoReturn:
    """Ends this process now, where all is saved: the next phase may be compiling.

    XLA cannot be interrupted. At its end Python waits for the thread that is in there,
    for minutes that whoever sent SIGTERM may not give; a daemon thread, which it does
    not wait for, makes it abort instead. So of what belongs to an end only this takes
    place: what was printed is out, and the other processes are told.
    """
    try:
        _flush()
        jax.distributed.shutdown()
    finally:  # whether or not anybody listens
        os._exit(exit_code)


def any_says(answer: bool) -> bool:
    """Returns whether a process says so, in all processes, which ask together."""
    if num_processes() == 1:
        return answer
    return bool(np.any(multihost_utils.process_allgather(np.array(answer))))


def first_says(answer: bool) -> bool:
    """Returns process 0's answer in all processes, which ask together."""
    if num_processes() == 1:
        return answer
    return bool(multihost_utils.broadcast_one_to_all(np.array(answer)))


# -------------------------------------------------------------------------- agreement


def is_first() -> bool:
    """Returns whether this is the process that speaks and writes."""
    return jax.process_index() == 0


def agree(name: str, make: Callable[[], str]) -> str:
    """Returns, in every process, what process 0 makes.

    Args:
      name: of what is made, once in a run.
      make: called by process 0 alone.

    Raises:
      ConfigError: in every process, when `make` raised it; DamagedError likewise.
    """
    if num_processes() == 1:
        return make()
    client, key = distributed.global_state.client, f"bert_jax/{name}"
    assert client is not None
    if not is_first():
        answer = json.loads(client.blocking_key_value_get(key, AGREE_SECS * 1000))
        if "mistake" in answer:
            kind = DamagedError if answer["is_damage"] else ConfigError
            raise kind(answer["mistake"])
        return answer["made"]
    try:
        made = make()
    except ConfigError as error:
        answer = {"mistake": str(error), "is_damage": isinstance(error, DamagedError)}
        client.key_value_set(key, json.dumps(answer))
        raise
    client.key_value_set(key, json.dumps({"made": made}))
    return made


def first_then_others(name: str, do: Callable[[], T]) -> T:
    """Returns do(), which process 0 calls before the others: it may write files."""
    results: list[T] = []

    def first() -> str:
        results.append(do())
        return ""

    agree(name, first)
    return results[0] if results else do()


def check_same(name: str, value: str, mistake: str) -> None:
    """Raises ConfigError(mistake) where a process has not the value of process 0."""
    agreed = agree(name, lambda: value)
    if value != agreed:
        raise ConfigError(
            f"{mistake} (process {jax.process_index()}: {value}, process 0: {agreed})"
        )


def make_shared(flag: str, directory: str) -> None:
    """Makes a directory, and sees that it is the same one for all processes.

    Raises:
      ConfigError: when this process does not see what process 0 wrote there.
    """

    def mark() -> str:
        name = f".shared-{secrets.token_hex(8)}"
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            if num_processes() > 1:
                (Path(directory) / name).touch()
        except OSError as error:
            raise ConfigError(
                f"--{flag}={directory}: {error.strerror}; give another path"
            ) from None
        return name

    marker = Path(directory) / agree(f"directory {flag}", mark)
    if num_processes() == 1:
        return
    try:
        if not wait_for(marker.exists):
            raise ConfigError(
                f"--{flag}={directory} of process {jax.process_index()} is not that of"
                " process 0; give a directory that all hosts share"
            )
        barrier(f"directory {flag}")
    finally:
        if is_first():
            marker.unlink()


def wait_for(is_there: Callable[[], bool]) -> bool:
    """Waits for what another host made, whatever is cached; returns whether it came."""
    deadline = time.monotonic() + SHARED_SECS
    while not is_there():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def barrier(name: str) -> None:
    """Waits for all processes; a name serves once."""
    client = distributed.global_state.client
    if client is not None and num_processes() > 1:
        client.wait_at_barrier(f"bert_jax/{name}", 2 * SHARED_SECS * 1000)
