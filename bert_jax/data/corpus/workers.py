"""Runs a task over many items in worker processes, with bounded read-ahead."""

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from bert_jax.errors import ConfigError

# The number of items that wait for a process, so that no process waits for an item.
LOOK_AHEAD = 2

# A function that runs a task over many items: `run` on this machine, `ray_workers` on
# many. Its arguments are those of `run`, without the number of processes.
Executor = Callable[
    [Callable[..., Callable], tuple[Any, ...], Iterable[Any]], Iterator[Any]
]


def run(
    make: Callable[..., Callable],
    args: tuple[Any, ...],
    items: Iterable[Any],
    num_workers: int,
) -> Iterator[Any]:
    """Runs a task for each item, and yields the results in order of completion.

    With one worker or one item, everything runs in this process. Otherwise the worker
    processes import only the modules of `make` and its arguments. `make(*args)` is
    called once in every process, and returns the task. At most num_workers + LOOK_AHEAD
    items are in memory at a time.
    """
    items = iter(items)
    first = list(itertools.islice(items, 2))
    if num_workers == 1 or len(first) < 2:
        if first:
            yield from map(make(*args), itertools.chain(first, items))
        return
    with Pool(num_workers, make, args) as pool:
        pending: set[concurrent.futures.Future[Any]] = set()
        try:
            for item in itertools.chain(first, items):
                pending.add(pool.run(item))
                if len(pending) >= num_workers + LOOK_AHEAD:
                    done, pending = concurrent.futures.wait(
                        pending, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    yield from (future.result() for future in done)
            for future in concurrent.futures.as_completed(pending):
                yield future.result()
        except BrokenProcessPool:
            raise ConfigError(
                "a worker process was killed, most likely because memory ran out; use"
                " fewer --workers of python -m bert_jax.prepare"
            ) from None
        except BaseException:
            # This waits for running tasks: their output may be removed after this.
            pool.shutdown(cancel_futures=True)
            raise


class Pool(concurrent.futures.ProcessPoolExecutor):
    """Worker processes that import only the modules of their task."""

    def __init__(
        self, num_workers: int, make: Callable[..., Callable], args: tuple[Any, ...]
    ):
        """Creates a pool, of which each process first calls make(*args)."""
        context = multiprocessing.get_context("spawn")
        super().__init__(num_workers, context, _start_worker, (make, args))

    def run(self, item: Any) -> "concurrent.futures.Future[Any]":
        """Calls the task that `make` has returned with an item, in a process."""
        with _starting_processes():
            return self.submit(_run_task, item)


# The task of a worker process.
_task: Callable[[Any], Any] | None = None


def _start_worker(make: Callable[..., Callable], args: tuple[Any, ...]) -> None:
    global _task
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Threads of the tokenizers library would compete with the other processes.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _task = make(*args)


def _run_task(item: Any) -> Any:
    assert _task is not None
    return _task(item)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


_starting = threading.Lock()


@contextlib.contextmanager
def _starting_processes() -> Iterator[None]:
    """Blocks SIGINT and empties __main__ while processes may be started.

    The processes inherit the blocked signal, so Ctrl-C does not interrupt their imports
    either. Only this process handles it, and ends the others. Spawned processes import
    __main__ for tasks defined in it. Here it may be `train`, which imports JAX: this
    would take seconds and hundreds of megabytes.
    """
    with _starting:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
