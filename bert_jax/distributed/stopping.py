"""Ends all processes of a run together, with one exit code, and a process that hangs.

A process that fails stores its error in JAX's coordination service, where a thread of
every other process finds it. All processes then exit within seconds. A process that is
killed stores nothing; XLA notices its absence, and the others exit with EXIT_LOST. So
does a process that makes no progress, see `Watchdog`.
"""

import atexit
import collections
import contextlib
import ctypes
import faulthandler
import json
import os
import re
import signal
import statistics
import sys
import threading
import time
import traceback
from typing import Any, NoReturn, Self

import jax
from jax._src import distributed  # the coordination client has no public name

from bert_jax import storage
from bert_jax.errors import EXIT_LOST
from bert_jax.storage import lease

# A process without a heartbeat for this long is considered lost.
HEARTBEAT_SECS = 30
# A process looks for the error of another one every POLL_SECS. It then waits for
# GRACE_SECS, because it may have the same error and report it itself.
POLL_SECS, GRACE_SECS = 0.5, 1.5
STOP_SECS = 4  # how long processes that stop wait for each other

# Errors of CPU collectives and of the coordination service when a process is lost.
LOST_CONNECTION = re.compile(
    r"Gloo .*(Connection (closed|reset) by peer|Broken pipe)"
    r"|UNAVAILABLE: .*coordination",
    re.DOTALL,
)
LOST_MESSAGE = (
    "another process of the run is gone; rerun the same command to resume from the last"
    " checkpoint"
)
# The smallest limit of a step: slow storage or a late peer is not a hang.
PATIENCE_SECS = 600.0
# The limit of slow steps, as a multiple of the median of the last RECENT_STEPS.
PATIENCE_STEPS = 10
RECENT_STEPS = 100
# The limit of other activities: opening devices, a compilation, a save to a slow disk.
LONG_SECS = 3600.0

_ERROR_KEY, _BARRIER = "bert_jax/error", "bert_jax/stopped"

_lock = threading.Lock()
_exit_code: int | None = None  # of the first thread that ends this process
_abort_handler: Any = None  # keeps the callback alive: C holds no reference


# ------------------------------------------------------------- errors of this process


def stop_all(message: str, exit_code: int, *, prints: bool = True) -> None:
    """Prints an error and ends every process of a run; returns if this is the only one.

    If not `prints`, only the other processes print the message.
    """
    if not _is_alone() and _begin_exit(exit_code):
        _wait_for_exit()  # the cause of this error may be that this process exits
    if prints:
        _print(message)
    if _is_alone():
        return
    client: Any = distributed.global_state.client
    error = [f"process {distributed.global_state.process_id}: {message}", exit_code]
    with contextlib.suppress(Exception):  # another process may have failed before
        client.key_value_set(_ERROR_KEY, json.dumps(error))
    _leave(exit_code)


def stop_after(error: Exception) -> None:
    """Ends every process of a run after an error that is not a user's mistake.

    Returns if this is the only process.
    """
    if _is_alone():
        return
    if _exit_code is not None:
        _wait_for_exit()
    _flush()
    if _is_lost_connection(error):
        stop_all(LOST_MESSAGE, EXIT_LOST)
    with contextlib.suppress(OSError):
        traceback.print_exception(error)
    if may_be_lost_peer(error):
        # XLA detects a lost process in this time, and aborts this one.
        time.sleep(HEARTBEAT_SECS + 15)
    first_line = f"{type(error).__name__}: {error}".partition("\n")[0]
    message = f"{first_line}; that process has printed the traceback"
    stop_all(message, 1, prints=False)


def may_be_lost_peer(error: Exception) -> bool:
    """Returns whether a lost process may be the cause of an error."""
    is_of_runtime = isinstance(error, jax.errors.JaxRuntimeError)
    return not _is_alone() and (is_of_runtime or _is_lost_connection(error))


def _is_lost_connection(error: Exception) -> bool:
    # Not by type: a collective may raise a ValueError.
    return bool(LOST_CONNECTION.search(str(error)))


def exit_now(exit_code: int) -> NoReturn:
    """Ends this process without waiting for threads. Call it when the state is saved.

    A thread may be compiling the next phase, and XLA cannot be interrupted. A normal
    exit of Python waits for that thread for minutes, longer than the grace period after
    SIGTERM may be; a daemon thread is not waited for, but makes Python abort. So this
    function only flushes the output, releases locks in buckets, removes temporary
    directories and disconnects from the other processes.
    """
    try:
        _clean_up()
        jax.distributed.shutdown()
    finally:  # exit even if the coordinator is gone
        os._exit(exit_code)


def end() -> None:
    """Ends this process after a success, if it is one of several.

    At its exit, Python ends daemon threads. That of `watch`, inside JAX's client, would
    abort, and the handler of the abort would ask for Python until the stack is full.
    """
    if not _is_alone():
        sys.stdout.flush()  # raises if it cannot be written
        atexit._run_exitfuncs()  # one of them waits for the other processes
        _flush()
        os._exit(0)


# ------------------------------------------------------------ errors of other processes


def watch() -> None:
    """Starts the thread that ends this process after an error of another one."""
    threading.Thread(target=_exit_when_told, name="errors", daemon=True).start()


def _exit_when_told() -> None:
    while (error := _error_elsewhere()) is None:
        time.sleep(POLL_SECS)
    time.sleep(GRACE_SECS)
    message, exit_code = error
    if _begin_exit(exit_code):
        _wait_for_exit()
    _print(message)
    _leave(exit_code)


def _error_elsewhere() -> tuple[str, int] | None:
    """Returns the error and exit code of the process that failed first, if any."""
    client: Any = distributed.global_state.client
    try:
        message, exit_code = json.loads(client.key_value_try_get(_ERROR_KEY))
    except Exception:  # there is no error, or process 0 is gone
        return None
    return message, exit_code


def exit_when_aborted(message: str) -> None:
    """Prints an error and exits with EXIT_LOST when XLA aborts this process.

    XLA's coordination service aborts every process of a run when one is lost or does
    not join. Its error callback cannot be used from Python (std::bad_cast in jaxlib
    0.10), so SIGABRT is handled instead; XLA has written the reason to standard error
    by then.
    """
    global _abort_handler

    def aborted(_: int) -> None:
        # Another thread that ends this process may wait for the one that XLA aborts.
        begun = _begin_exit(EXIT_LOST)
        if not begun:
            _print(message)
        os._exit(begun or EXIT_LOST)

    _abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)
    ctypes.CDLL(None).signal(signal.SIGABRT, _abort_handler)


# ------------------------------------------------------------------------------- exit


def _is_alone() -> bool:
    return (distributed.global_state.num_processes or 1) == 1


def _begin_exit(exit_code: int) -> int | None:
    """Records that this thread ends the process; returns the code of one before it."""
    global _exit_code
    with _lock:
        begun = _exit_code
        _exit_code = begun or exit_code
    return begun


def _wait_for_exit() -> NoReturn:
    while True:
        time.sleep(1)


def _leave(exit_code: int) -> NoReturn:
    """Exits when all processes do: the coordination service ends with process 0."""
    client: Any = distributed.global_state.client
    try:
        _clean_up()
        client.wait_at_barrier(_BARRIER, STOP_SECS * 1000)
    finally:
        os._exit(exit_code)


def _clean_up() -> None:
    _flush()
    lease.release_all()
    storage.remove_scratch()


def _print(message: str) -> None:
    with contextlib.suppress(OSError):  # stderr may be closed
        print(f"error: {message}", file=sys.stderr, flush=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a pipe may be closed
            stream.flush()


# ------------------------------------------------------------------------- watchdog


class Watchdog:
    """Prints the stacks of all threads and exits with code 76 if a step hangs.

    A thread watches for as long as the context is open.
    """

    def __init__(self, patience_secs: float = PATIENCE_SECS):
        self._patience_secs = patience_secs
        self._recent_secs = collections.deque[float](maxlen=RECENT_STEPS)
        self._what = "the start"
        self._since: float | None = None  # None while there is no limit
        self._is_long = False  # the current activity is not a step
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="watchdog", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def heartbeat(self, what: str) -> None:
        """Records the end of a step, or of an activity between steps."""
        now = time.monotonic()
        if self._since is not None and not self._is_long:
            self._recent_secs.append(now - self._since)
        self._what, self._since, self._is_long = what, now, False

    def begin(self, what: str) -> None:
        """Records the start of an activity that may take up to LONG_SECS."""
        what = f"the start of {what}"
        self._is_long, self._what, self._since = True, what, time.monotonic()

    def pause(self) -> None:
        """Removes the limit until `heartbeat` or `begin` is called."""
        self._since = None

    def limit_secs(self) -> float:
        """Returns the limit of the current step or activity, in seconds."""
        if self._is_long:
            return LONG_SECS
        if not self._recent_secs:
            return self._patience_secs
        slow = PATIENCE_STEPS * statistics.median(self._recent_secs.copy())
        return max(self._patience_secs, slow)

    def _watch(self) -> None:
        while not self._closed.wait(min(self._patience_secs / 10, 10.0)):
            # The limit first: `heartbeat` shortens it after it has written the start.
            limit, since = self.limit_secs(), self._since
            if since is not None and time.monotonic() - since > limit:
                self._exit(limit)

    def _exit(self, limit: float) -> None:
        _print(
            f"no progress for {limit:.0f} s after {self._what}; the stacks of all"
            " threads follow; rerun the same command to resume from the last checkpoint"
        )
        faulthandler.dump_traceback(all_threads=True)
        os._exit(EXIT_LOST)
