"""What asks a run to save and stop: SIGTERM, Ctrl-C, a machine about to be taken away.

All come down to SIGTERM, which JAX's coordination service tells every process of the
run at one step, see `hosts.interrupted`.
"""

import ctypes
import http.client
import os
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import NoReturn

from bert_jax import hosts

EXIT_FORCED = 128 + signal.SIGINT  # as shells tell of a process that SIGINT ended

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


_jax_handler: int | None = None  # of SIGTERM, its address, while it is put aside


def stop_at_once() -> None:
    """Makes SIGTERM end a run of one process where it stands, until `listen`.

    To be called when `hosts.join` was: JAX's handler only takes a note, which is looked
    at after a step, and before there is one a corpus may be prepared, or fetched.
    Several processes leave it to JAX, so that they all end alike.
    """
    global _jax_handler
    if hosts.num_processes() == 1:
        _jax_handler = _set_handler(None)
        signal.signal(signal.SIGTERM, _stop)


def _stop(*_: object) -> NoReturn:
    raise hosts.Interrupted("no step was taken")


def _set_handler(address: int | None) -> int | None:
    """Sets what C calls at SIGTERM, None for its default; returns what was set.

    Python's own signal module cannot put back a handler that is not Python's.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    return libc.signal(signal.SIGTERM, address)


def listen() -> None:
    """Makes SIGTERM, Ctrl-C and notices of the machine ask for the end of the run.

    From the main thread, when there is something to save; once in a process.
    """
    if _jax_handler is not None:
        _set_handler(_jax_handler)
    _listen_to_interrupts()
    if _is_google_machine():
        threading.Thread(target=_watch_notices, name="notices", daemon=True).start()


def ignore() -> None:
    """Ends `listen` for Ctrl-C, which then stops the process: all is saved."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _listen_to_interrupts() -> None:
    """Handles SIGINT in a thread: the main one may be inside XLA for minutes."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda number, frame: None)
    threading.Thread(
        target=_answer_interrupts, args=(reader,), name="interrupts", daemon=True
    ).start()


def _answer_interrupts(reader: int) -> None:
    """The first asks to save and stop, the second stops."""
    is_asked = False
    while True:
        (number,) = os.read(reader, 1)
        if number != signal.SIGINT:
            continue
        if is_asked:
            print("stopped without saving", file=sys.stderr, flush=True)
            os._exit(EXIT_FORCED)
        is_asked = True
        print(
            "interrupt: saving after this step, then stopping; once more stops at once",
            file=sys.stderr,
            flush=True,
        )
        os.kill(os.getpid(), signal.SIGTERM)


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
