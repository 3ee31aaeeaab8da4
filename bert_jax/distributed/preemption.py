"""Saves and stops a run on SIGTERM, Ctrl-C or a preemption notice of the machine.

Ctrl-C and notices send SIGTERM to this process. JAX's coordination service announces
SIGTERM to every process of the run at the same step, see `interrupted`.
"""

import ctypes
import gc
import http.client
import itertools
import os
import signal
import sys
import threading
import time
import types
import urllib.request
from pathlib import Path
from typing import NoReturn

import jax
from jax.experimental import multihost_utils

import bert_jax
from bert_jax import errors
from bert_jax.distributed import multihost

_num_calls = itertools.count(1)

_is_asked_to_stop = False

# Metadata keys that announce the end of a Google machine, and their values:
# https://cloud.google.com/compute/docs/metadata/overview. A Spot machine is stopped
# 30 s after its notice.
METADATA_HOST = "metadata.google.internal"
NOTICES = {"preempted": "TRUE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}
POLL_SECS = 2.0
# Without a proxy, because the metadata server is reached directly.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def raise_interrupts() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt, but never in a garbage-collector callback.

    JAX registers such a callback; Python prints and drops an exception that is raised
    in one. A command that reads text collects garbage all the time, so in a callback
    the exception is deferred until the callback returns.
    """
    if signal.getsignal(signal.SIGINT) in (bert_jax.stop, signal.default_int_handler):
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, _raise_interrupt)


def _raise_interrupt(_: int, frame: types.FrameType | None) -> None:
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        if frame.f_code in callbacks:
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # SIGALRM calls this again
            return
        frame = frame.f_back
    raise KeyboardInterrupt


_is_saving: bool | None = None  # None before `exit_on_signals` is called
_jax_handler: int | None = None  # address of JAX's SIGTERM handler while it is replaced


def exit_on_signals() -> None:
    """Makes SIGTERM and Ctrl-C end the run at once, until `save_on_signals`.

    Call it once, from the main thread, after `multihost.join`. JAX's own handler of
    SIGTERM only records the signal, which is examined after a step; but before the
    first step, a corpus may be prepared or downloaded. With several processes, SIGTERM
    is left to JAX, so that all of them stop at the same point.
    """
    global _is_saving, _jax_handler
    _is_saving = False
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: None)
    if multihost.num_processes() == 1:
        # Python's signal module cannot return a handler that is not Python's.
        _jax_handler = _libc().signal(signal.SIGTERM, None) or 0
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    # Signals are handled in a thread: the main thread may be inside XLA for minutes.
    threading.Thread(
        target=_handle_signals, args=(reader,), name="signals", daemon=True
    ).start()


def save_on_signals() -> None:
    """Handles SIGTERM, Ctrl-C and preemption notices: the run saves and then stops.

    Call it when there is a state to save, after `exit_on_signals`. Does nothing if that
    was not called, as in a notebook that calls `train`.
    """
    global _is_saving
    if _is_saving is None:
        return
    _is_saving = True
    if _jax_handler is not None:
        _libc().signal(signal.SIGTERM, _jax_handler)
    if _is_google_machine():
        threading.Thread(target=_watch_notices, name="notices", daemon=True).start()


def restore_ctrl_c() -> None:
    """Restores Python's handler of Ctrl-C. Call it after the last checkpoint."""
    if _is_saving is None:
        return
    signal.set_wakeup_fd(-1)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    raise_interrupts()


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    return libc


def _handle_signals(reader: int) -> None:
    """Saves and stops the run on the first Ctrl-C, and exits on the second.

    Until `save_on_signals` is called, a run of one process exits on the first one.
    """
    is_stopping = False
    while True:
        (number,) = os.read(reader, 1)
        if not _is_saving and multihost.num_processes() == 1:
            if number == signal.SIGINT:
                bert_jax.stop()
            if number == signal.SIGTERM:
                _exit_interrupted()
        elif number == signal.SIGTERM:  # it arrived during `save_on_signals`
            os.kill(os.getpid(), signal.SIGTERM)
        elif number == signal.SIGINT:
            if is_stopping:
                print("stopped without saving", file=sys.stderr, flush=True)
                os._exit(bert_jax.EXIT_FORCED)
            is_stopping = True
            print(
                "interrupted: saving after this step, then stopping; press Ctrl-C again"
                " to stop without saving",
                file=sys.stderr,
            )
            os.kill(os.getpid(), signal.SIGTERM)


def _exit_interrupted() -> NoReturn:
    try:
        print(errors.INTERRUPTED.format("no step was taken by this call"), flush=True)
    finally:  # exit even if stdout is closed
        os._exit(errors.EXIT_INTERRUPTED)


def _is_google_machine() -> bool:
    try:
        product = Path("/sys/class/dmi/id/product_name").read_text()
    except OSError:
        product = ""
    return "GCE_METADATA_HOST" in os.environ or product.startswith("Google")


def _watch_notices() -> None:
    """Sends SIGTERM to this process when a new notice appears."""
    seen = _notices()
    while True:
        time.sleep(POLL_SECS)
        new = _notices() - seen
        if new:
            print(
                f"notice from this machine: {', '.join(sorted(new))}; saving, then"
                " stopping",
                file=sys.stderr,
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _notices() -> set[str]:
    host = os.environ.get("GCE_METADATA_HOST", METADATA_HOST)
    notices = set()
    for name, value in NOTICES.items():
        request = urllib.request.Request(
            f"http://{host}/computeMetadata/v1/instance/{name}",
            headers={"Metadata-Flavor": "Google"},
        )
        try:
            with _DIRECT.open(request, timeout=POLL_SECS) as response:
                if response.read().decode().strip() == value:
                    notices.add(name)
        except (OSError, http.client.HTTPException):
            pass  # the server is not always available; SIGTERM still arrives without it
    return notices


def interrupted() -> bool:
    """Returns whether to save and stop now, because a process received SIGTERM.

    All processes must call it after every step; it returns True at the same step in all
    of them.
    """
    global _is_asked_to_stop
    if not jax.distributed.is_initialized():
        return False
    # JAX returns True once, but a run that rolls back instead of saving calls again.
    if _is_asked_to_stop:
        return True
    # Count calls, not steps: JAX expects increasing numbers, and a run that rolls back
    # takes some steps twice.
    _is_asked_to_stop = multihost_utils.reached_preemption_sync_point(next(_num_calls))
    return _is_asked_to_stop
