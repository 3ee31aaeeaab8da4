"""Runs a task over many items in worker processes, reading ahead only so far."""

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items that wait for a free process, so that none is idle while the next is read.
LOOK_AHEAD = 2


def run(
    task: Callable[[Item], Result],
    items: Iterable[Item],
    num_workers: int,
    start: Callable[..., None] | None = None,
    start_args: tuple[Any, ...] = (),
) -> Iterator[Result]:
    """Yields the results in the order they are finished.

    With one worker, or one item, everything runs in this process. Otherwise `task`,
    `start` and their arguments are pickled, and the module of `task` is all that the
    processes import.

    Args:
      task: called with each item.
      items: taken when a process is about to be free: at most num_workers + LOOK_AHEAD
        are held at a time.
      num_workers: how many processes.
      start: called first in every process, with start_args.
      start_args: see start.
    """
    items = iter(items)
    first = list(itertools.islice(items, 2))
    if num_workers == 1 or len(first) < 2:
        if start is not None:
            start(*start_args)
        yield from map(task, itertools.chain(first, items))
        return
    with concurrent.futures.ProcessPoolExecutor(
        num_workers, _LightContext(), _start_worker, (start, start_args)
    ) as pool:
        pending: set[concurrent.futures.Future[Result]] = set()
        try:
            for item in itertools.chain(first, items):
                with _no_interrupt():  # it starts the processes
                    pending.add(pool.submit(task, item))
                if len(pending) >= num_workers + LOOK_AHEAD:
                    done, pending = concurrent.futures.wait(
                        pending, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    yield from (future.result() for future in done)
            for future in concurrent.futures.as_completed(pending):
                yield future.result()
        except BaseException:
            # Also waits: what the processes write may be removed after this.
            pool.shutdown(cancel_futures=True)
            raise


def _start_worker(start: Callable[..., None] | None, args: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Of the tokenizers library: its threads would compete with the other processes.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if start is not None:
        start(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _LightProcess(multiprocessing.context.SpawnProcess):
    """A process that does not import the program that started it.

    Spawned processes import the parent's __main__ again, for tasks defined there. That
    may be `train`, and jax with it: seconds and hundreds of megabytes for nothing.
    """

    def start(self) -> None:
        with _no_main():
            super().start()


class _LightContext(multiprocessing.context.SpawnContext):
    Process = _LightProcess  # type: ignore[assignment]


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C is for this process, which ends those that it starts.

    They inherit what is blocked, and so do not hear it among their imports either.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
