"""What asks a run to save and stop: SIGTERM, Ctrl-C, a machine about to be taken away.

All come down to SIGTERM, which JAX's coordination service tells every process of the
run at one step, see `preemption.interrupted`.
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

_asked = itertools.count(1)

_is_asked_to_stop = False

# Of Google's machines: https://cloud.google.com/compute/docs/metadata/overview. A Spot
# machine has 30 s from the notice on.
METADATA_HOST = "metadata.google.internal"
NOTICES = {
    "preempted": "TRUE",
    "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE",
}
POLL_SECS = 2.0
# Whatever proxy the environment names, the machine itself is asked.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def raise_interrupts() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt, but where that would be swallowed.

    JAX looks after its own at each garbage collection, in a callback; what is raised
    there Python prints and forgets. A command that reads text collects all the time.
    """
    if signal.getsignal(signal.SIGINT) in (bert_jax.stop, signal.default_int_handler):
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, _raise_interrupt)


def _raise_interrupt(_: int, frame: types.FrameType | None) -> None:
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        if frame.f_code in callbacks:
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # SIGALRM comes here again
            return
        frame = frame.f_back
    raise KeyboardInterrupt


_is_listening: bool | None = None  # None: before `stop_at_once`, or never called
_jax_handler: int | None = None  # of SIGTERM, its address, while it is put aside


def stop_at_once() -> None:
    """Makes SIGTERM and Ctrl-C end a run where it stands, until `listen`.

    Call it once, from the main thread, after `multihost.join`. JAX's own handler of
    SIGTERM only records the signal, which is examined after a step; before the first
    step a corpus may be prepared or downloaded. Several processes leave the signal to
    JAX, so that they all end alike.
    """
    global _is_listening, _jax_handler
    _is_listening = False
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: None)
    if multihost.num_processes() == 1:
        # Python's signal module gives back no handler that is not Python's.
        _jax_handler = _libc().signal(signal.SIGTERM, None) or 0
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    # In a thread: the main one may be inside XLA for minutes.
    threading.Thread(
        target=_answer_signals, args=(reader,), name="signals", daemon=True
    ).start()


def listen() -> None:
    """Makes SIGTERM, Ctrl-C and notices of the machine ask for the end of the run.

    When there is something to save, after `stop_at_once`; without it, as in a notebook
    that calls `train`, signals stay as they are.
    """
    global _is_listening
    if _is_listening is None:
        return
    _is_listening = True
    if _jax_handler is not None:
        _libc().signal(signal.SIGTERM, _jax_handler)
    if _is_google_machine():
        threading.Thread(target=_watch_notices, name="notices", daemon=True).start()


def ignore() -> None:
    """Ends `listen` for Ctrl-C, which then stops the process: all is saved."""
    if _is_listening is None:
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


def _answer_signals(reader: int) -> None:
    """The first Ctrl-C asks to save and stop, the second stops.

    Before there is something to save the first one does, of a run of one process.
    """
    is_asked = False
    while True:
        (number,) = os.read(reader, 1)
        if not _is_listening and multihost.num_processes() == 1:
            if number == signal.SIGINT:
                bert_jax.stop()
            if number == signal.SIGTERM:
                _end("no step was taken by this call")
        elif number == signal.SIGTERM:  # it came while `listen` was called
            os.kill(os.getpid(), signal.SIGTERM)
        elif number == signal.SIGINT:
            if is_asked:
                print("stopped without saving", file=sys.stderr, flush=True)
                os._exit(bert_jax.EXIT_FORCED)
            is_asked = True
            print(
                "interrupt: saving after this step, then stopping; once more stops at"
                " once",
                file=sys.stderr,
                flush=True,
            )
            os.kill(os.getpid(), signal.SIGTERM)


def _end(done: str) -> NoReturn:
    try:
        print(errors.INTERRUPTED.format(done), flush=True)
    finally:  # whether or not anybody listens
        os._exit(errors.EXIT_INTERRUPTED)


def _is_google_machine() -> bool:
    try:
        product = Path("/sys/class/dmi/id/product_name").read_text()
    except OSError:
        product = ""
    return "GCE_METADATA_HOST" in os.environ or product.startswith("Google")


def _watch_notices() -> None:
    """Asks for the end of the run when a notice appears that was not there before."""
    seen = _notices()
    while True:
        time.sleep(POLL_SECS)
        new = _notices() - seen
        if new:
            print(
                f"notice of this machine: {', '.join(sorted(new))}; saving, then"
                " stopping",
                file=sys.stderr,
                flush=True,
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _notices() -> set[str]:
    """Returns the names of the notices that there are now."""
    host = os.environ.get("GCE_METADATA_HOST", METADATA_HOST)
    found = set()
    for name, value in NOTICES.items():
        request = urllib.request.Request(
            f"http://{host}/computeMetadata/v1/instance/{name}",
            headers={"Metadata-Flavor": "Google"},
        )
        try:
            with _DIRECT.open(request, timeout=POLL_SECS) as answer:
                if answer.read().decode().strip() == value:
                    found.add(name)
        except (OSError, http.client.HTTPException):
            pass  # the server is not always there; SIGTERM itself still comes
    return found


def interrupted() -> bool:
    """Returns whether to save now and stop, because a process got SIGTERM.

    To be asked after every step by all processes: all are told at the same step.
    """
    global _is_asked_to_stop
    if not jax.distributed.is_initialized():
        return False
    # JAX says so once: a run that rolls back instead of saving has to hear it again.
    if _is_asked_to_stop:
        return True
    # Of questions, not of steps: JAX looks for the number after the last one it was
    # asked, and a run that rolls back takes some steps twice.
    _is_asked_to_stop = multihost_utils.reached_preemption_sync_point(next(_asked))
    return _is_asked_to_stop
