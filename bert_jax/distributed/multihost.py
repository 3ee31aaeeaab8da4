"""Multi-process coordination: initialization and agreement.

Every run joins JAX's coordination service, including a run of one process, so that
there is one way to interrupt a run. JAX detects TPU pods, GKE and SLURM by itself;
elsewhere, the environment variables ENVIRONMENT identify the processes. Only process 0
writes to standard output; that of the others is discarded. stopping.py ends the
processes together when one of them fails.

All processes must have the same settings, code and libraries: each computes its part of
a step by its own program.
"""

import ctypes
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from absl import flags
from jax._src import clusters, distributed  # neither has a public name
from jax.experimental import multihost_utils

import bert_jax
from bert_jax import storage
from bert_jax.config import flatten
from bert_jax.distributed import stopping
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
SHARED_FILE = ".shared"  # in a directory that all processes must see
LIBRARIES = ("jax", "jaxlib", "libtpu", "flax", "optax", "numpy")
# How long the others wait for a value of process 0, which may prepare a corpus first.
AGREE_SECS = 24 * 3600

T = TypeVar("T")


# ---------------------------------------------------------------------------- startup


def join(config: Any) -> None:
    """Joins the other processes of this run. Call it before devices are opened.

    The config is a dataclass, which must be that of process 0.
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
    detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
    count = given[1] if given else detect(None, None, None, None, None, JOIN_SECS)[1]
    if count in (None, 1):
        _join_alone(limits)
    else:
        jax.distributed.initialize(*given, **limits)
    if num_processes() == 1:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)  # no peer can cause an abort
        _leave_service_running()
        return
    stopping.exit_when_aborted(stopping.LOST_MESSAGE)
    stopping.watch()
    if distributed.global_state.process_id:
        # Redirect the file descriptor, because C++ libraries write to it as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    check_same_settings(config)


def _processes_in_environment() -> tuple[Any, ...]:
    values = [os.environ.get(name, "") for name in ENVIRONMENT]
    if not any(values):
        return ()
    match = re.fullmatch(r"(.+:\d+) (\d+) (\d+)", " ".join(values))
    if not match or int(match[3]) >= int(match[2]):
        raise ConfigError(
            f"{', '.join(ENVIRONMENT)} in the environment are"
            f" {', '.join(map(repr, values))}; they must be HOST:PORT of process 0,"
            " the number of processes, and the index of this one, from 0; or all be"
            " unset"
        )
    return match[1], int(match[2]), int(match[3])


def _join_alone(limits: dict[str, Any]) -> None:
    # By default, simulated devices would communicate through sockets.
    jax.config.update("jax_cpu_collectives_implementation", None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    limits["heartbeat_timeout_seconds"] = ALONE_HEARTBEAT_SECS
    limits["coordinator_bind_address"] = address  # not reachable from other hosts
    jax.distributed.initialize(address, num_processes=1, process_id=0, **limits)


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


def check_same_settings(config: Any) -> None:
    """Raises ConfigError if this process differs from process 0; opens no device.

    The others are stopped before they return.
    """
    me, key, timeout = distributed.global_state.process_id, "bert_jax/settings", 300_000
    flags_of_command = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
    settings = code() | flatten({"config": dataclasses.asdict(config)})
    settings |= {f"--{x.name}": x.value for x in flags_of_command if x.name != "config"}
    mine = {name: json.dumps(value) for name, value in settings.items()}
    if me == 0:
        _client().key_value_set(key, json.dumps(mine))
    # A host with a cold disk imports its libraries and reads the sources.
    first = json.loads(_client().blocking_key_value_get(key, timeout))
    for name in {**first, **mine}:
        if mine.get(name) != first.get(name):
            raise ConfigError(
                f"{name} is {mine.get(name)} in process {me}, but {first.get(name)} in"
                " process 0; start all processes with the same command, code and"
                " libraries"
            )
    _client().wait_at_barrier(key, timeout)


def code() -> dict[str, Any]:
    """Returns the versions of bert_jax and LIBRARIES, and a digest of the sources."""
    versions: dict[str, Any] = {"the version of bert_jax": bert_jax.__version__}
    for name in LIBRARIES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        versions[f"the version of {name}"] = version
    package, sha256 = Path(bert_jax.__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        sha256.update(f"{content}  {path.relative_to(package)}\n".encode())
    versions["the digest of the sources of bert_jax"] = sha256.hexdigest()[:16]
    return versions


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
    first: Any = multihost_utils.broadcast_one_to_all(jax.tree.map(np.asarray, value))
    return jax.tree.map(lambda mine, theirs: type(mine)(theirs), value, first)


# -------------------------------------------------------------------------- agreement


def is_first() -> bool:
    """Returns whether this is process 0, the only one that prints and writes files."""
    return jax.process_index() == 0


def agree(name: str, make: Callable[[], T]) -> T:
    """Returns the result of `make` in process 0, as JSON, in every process.

    If `make` raises an error, `stopping` ends the processes that wait for its result. A
    name is used once in a run.
    """
    if num_processes() == 1:
        return make()
    key = f"bert_jax/{name}"
    if is_first():
        _client().key_value_set(key, json.dumps(make()))
    return json.loads(_client().blocking_key_value_get(key, AGREE_SECS * 1000))


def _client() -> Any:
    return distributed.global_state.client


def first_then_others(name: str, do: Callable[[], T]) -> T:
    """Calls `do` in process 0, where it may write files, and then in the others."""
    results: list[T] = []
    agree(name, lambda: results.append(do()))
    return results[0] if results else do()


def check_same(name: str, value: str, mistake: str) -> None:
    """Raises ConfigError(mistake) in processes whose value is not that of process 0."""
    agreed = agree(name, lambda: value)
    if value != agreed:
        raise ConfigError(
            f"{mistake} (process {jax.process_index()}: {value}, process 0: {agreed})"
        )


def make_shared(workdir: str) -> None:
    """Creates the workdir and verifies that all hosts share it."""
    path = os.path.join(workdir, SHARED_FILE)

    def mark() -> str:
        token = secrets.token_hex(8)
        try:
            storage.make_directory(workdir)
            if num_processes() > 1:
                storage.write(path, token.encode())
        except OSError as error:
            raise ConfigError(
                f"--workdir={workdir}: {error.strerror}; use another path"
            ) from None
        return token

    token = agree("directory", mark)
    if is_first() or wait_for(
        lambda: storage.exists(path) and storage.read(path).decode() == token
    ):
        return
    raise ConfigError(
        f"--workdir={workdir} of process {jax.process_index()} is not that of process"
        " 0; use a directory that all hosts share"
    )


def wait_for(is_there: Callable[[], bool]) -> bool:
    """Waits for a file of another host; returns False after SHARED_SECS."""
    deadline = time.monotonic() + SHARED_SECS
    while not is_there():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def barrier(name: str) -> None:
    """Waits for all processes to call it with this name; a name is used once."""
    if num_processes() > 1:
        _client().wait_at_barrier(f"bert_jax/{name}", 2 * SHARED_SECS * 1000)
