"""Runs a task over many items on a Ray cluster, like workers.py on one machine."""

import contextlib
import functools
import itertools
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import bert_jax
from bert_jax import hub, storage
from bert_jax.data.corpus import workers
from bert_jax.errors import ConfigError, StorageError

try:
    import ray  # pyright: ignore[reportMissingImports]
except ImportError:
    ray: Any = None

# How often Ray repeats a task whose process or node has died.
MAX_RETRIES = 10
# The number of tasks that wait or run, unless it is given: with this many, a cluster
# with autoscaling adds nodes.
MAX_TASKS = 1000
CONNECT_SECS = 10.0
CANCEL_SECS = 60.0


@contextlib.contextmanager
def connected(
    address: str, num_tasks: int | None, mark: str
) -> Iterator[workers.Executor]:
    """Connects to a Ray cluster, and yields a function that runs tasks on it.

    num_tasks is the number of tasks that wait or run at a time; None for MAX_TASKS.
    `mark` is the path of a file that tells whether a node sees this machine's files.
    """
    if ray is None:
        raise ConfigError(f"--ray={address} needs the package ray; pip install ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        host, colon, port = address.rpartition(":")
        if colon:  # at a wrong one, Ray would wait two minutes, and then exit
            socket.create_connection((host, int(port)), CONNECT_SECS).close()
        ray.init(
            address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={
                "py_modules": [os.path.dirname(bert_jax.__file__)],
                "env_vars": {"TOKENIZERS_PARALLELISM": "false"},  # Ray counts cores
            },
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"--ray={address} cannot be used ({error}); give auto on a node of a"
            " running cluster, HOST:PORT of its head (with RAY_AUTH_MODE=token if the"
            " cluster has a token), or local for a cluster of this machine alone"
        ) from None
    try:
        yield functools.partial(_run, limit=num_tasks or MAX_TASKS, mark=mark)
    finally:
        ray.shutdown()


def _run(
    make: Callable[..., Callable],
    args: tuple[Any, ...],
    items: Iterable[Any],
    *,
    limit: int,
    mark: str,
) -> Iterator[Any]:
    call = ray.remote(max_retries=MAX_RETRIES)(_call)
    # In a list, so that Ray does not fetch it for every call.
    stage = make, args, os.getcwd(), mark, storage.read(mark)
    made_by = [ray.put(stage)]
    items, pending = iter(items), []
    try:
        while True:
            free = limit - len(pending)
            pending += [
                call.remote(made_by, item) for item in itertools.islice(items, free)
            ]
            if not pending:
                return
            done, pending = ray.wait(pending)
            yield _result(done[0])
    except BaseException:
        # Nothing is written after this: the output may be removed.
        for task in pending:
            ray.cancel(task, force=True)
        if pending:
            ray.wait(pending, num_returns=len(pending), timeout=CANCEL_SECS)
        raise


def _result(task: Any) -> Any:
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ConfigError | StorageError | OSError):
            raise error.cause from None
        if isinstance(error.cause, ImportError):
            raise ConfigError(
                f"a node of the cluster lacks a package ({error.cause}); install"
                " requirements.txt and requirements-ray.txt on all nodes"
            ) from None
        raise
    except ray.exceptions.RayError as error:  # of each of the MAX_RETRIES
        raise ConfigError(
            f"Ray cannot run a task ({type(error).__name__}: {hub.first_line(error)});"
            " completed work is kept: rerun the command, on nodes with more memory per"
            " core if processes or nodes died"
        ) from None


# ------------------------------------------------------------------ worker processes


# The id of the task of this process, and the task.
_task: tuple[str, Callable[[Any], Any]] | None = None


def _call(made_by: list[Any], item: Any) -> Any:
    global _task
    name = made_by[0].hex()
    if _task is None or _task[0] != name:
        make, args, directory, mark, content = ray.get(made_by[0])
        with contextlib.suppress(OSError):
            os.chdir(directory)  # paths may be relative
        _check_shared(mark, content)
        _task = name, make(*args)
    return _task[1](item)


def _check_shared(mark: str, content: bytes) -> None:
    """Raises ConfigError if this node does not see the files of the driver."""
    with contextlib.suppress(OSError, ConfigError):
        if storage.read(mark) == content:
            return
    raise ConfigError(
        f"{os.path.dirname(mark)} on {socket.gethostname()} is not the directory of the"
        " same path on the machine of this command; with --ray, config.data.corpus_dir"
        " must be in a bucket or on a disk that all nodes mount at the same path"
    )
