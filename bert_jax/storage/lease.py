"""A lock in a bucket, which expires when its holder has ended."""

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time

from bert_jax import storage
from bert_jax.errors import EXIT_LOST
from bert_jax.storage.retries import reason

LEASE_SECS = 60.0
RENEWAL_SECS = 10.0
_held: list["Lease"] = []


def release_all() -> None:
    """Releases the leases of this process; another process can take them at once.

    Call it before the interpreter shuts down, which ends the threads of fsspec.
    """
    for lock in [*_held]:
        lock.release()


def confirm_all() -> None:
    """Ends this process if another one has taken one of its leases.

    Call it before each commit: after a pause, this process may have lost a lease that
    it has not renewed yet.
    """
    for lock in [*_held]:
        lock.confirm()


class Lease:
    """A lock in a bucket that expires when its holder stops renewing it.

    The lock is an object with a number for its name. A process takes it by creating
    the object of the next number, which a bucket allows to one process only. It must
    find the last lock released, its process ended on this host, or unchanged for
    LEASE_SECS by its own clock, so that clocks need not agree. The holder rewrites its
    object every RENEWAL_SECS, and has lost the lock if there is a higher number. The
    last object stays, so that no number is used twice: a late renewal then writes an
    object with a lower number than that of the current holder. So does a process that
    was paused before it creates its object, which it notices by listing them again.
    """

    def __init__(self, directory: str, what: str):
        """Prepares the lock of a directory, the URL of one for the lock alone.

        The error of a lost lock begins with `what`, the flag or key of what it locks.
        """
        self._directory, self._what = directory, what
        self._number, self._renewals = 0, 0
        self._token = secrets.token_hex(8)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def acquire(self) -> str | None:
        """Takes the lock, waiting at most LEASE_SECS for a dead holder.

        Returns None, or the description of the process that holds the lock.
        """
        number, held = self._newest()
        if held is not None:
            runs = _runs(held)
            if runs or (runs is None and not self._outlives(number, held)):
                return _describe(held)
        self._number = number + 1
        if not storage.create(self._path(self._number), self._content()):
            return _describe(self._newest()[1])
        if holder := self.check():
            storage.remove(self._path(self._number))
            return holder
        for old in self._numbers():
            if old < self._number:
                storage.remove(self._path(old))
        self._thread.start()
        _held.append(self)
        return None

    def check(self) -> str | None:
        """Returns None if this process still has the lock, else who took it."""
        number, held = self._newest()
        if number == self._number and held and held.get("token") == self._token:
            return None
        return _describe(held)

    def confirm(self) -> bool:
        """Returns whether this process has the lock; ends the process if it lost it."""
        holder = self.check()
        if holder and not self._stopped.is_set():
            message = f"{holder} has taken the lock in {self._directory}"
            print(f"error: {self._what}: {message}", file=sys.stderr, flush=True)
            os._exit(EXIT_LOST)
        return holder is None

    def release(self) -> None:
        """Gives the lock up; another process can take it at once."""
        with contextlib.suppress(ValueError):  # another thread ends this process
            _held.remove(self)
        self._stopped.set()
        self._thread.join(RENEWAL_SECS)  # a renewal would write the object again
        with contextlib.suppress(Exception):  # it expires
            if self.check() is None:
                content = json.dumps({"released": True}).encode()
                storage.write(self._path(self._number), content)

    def _renew(self) -> None:
        while not self._stopped.wait(RENEWAL_SECS):
            try:
                if not self.confirm():
                    return
                self._renewals += 1
                storage.write(self._path(self._number), self._content())
            except Exception as error:  # the bucket may be back before the lease ends
                print(f"lock: not renewed ({reason(error)})", file=sys.stderr)

    def _outlives(self, number: int, held: dict) -> bool:
        """Returns whether a lock stays unchanged for as long as a lease lasts."""
        print(
            f"waiting up to {LEASE_SECS:.0f} s for the lock of {_describe(held)} to"
            " expire",
            file=sys.stderr,
        )
        deadline = time.monotonic() + LEASE_SECS
        while time.monotonic() < deadline:
            time.sleep(min(1.0, LEASE_SECS / 10))
            newest = self._newest()
            if newest[1] is None:  # released
                return True
            if newest != (number, held):
                return False
        return True

    def _newest(self) -> tuple[int, dict | None]:
        """Returns the highest number, 0 if none, and its lock, None if released."""
        number = max(self._numbers(), default=0)
        if not number:
            return 0, None
        try:
            held = json.loads(storage.read(self._path(number)))
        except Exception:
            if number in self._numbers():
                raise
            return self._newest()  # replaced by the next one
        return number, None if held.get("released") else held

    def _numbers(self) -> list[int]:
        return [int(name) for name in storage.names(self._directory) if name.isdigit()]

    def _path(self, number: int) -> str:
        return f"{self._directory}/{number}"

    def _content(self) -> bytes:
        return json.dumps(
            {
                "process": os.getpid(),
                "host": socket.gethostname(),
                "machine": _machine(),
                "started": _started(os.getpid()),
                "token": self._token,
                "renewals": self._renewals,
            }
        ).encode()


def _describe(held: dict | None) -> str:
    if held is None:
        return "another process"
    return f"process {held.get('process')} on {held.get('host')}"


def _runs(held: dict) -> bool | None:
    """Returns whether the holder of a lock runs; None if it is on another host."""
    if held.get("machine") != _machine():
        return None
    return _started(held.get("process", 0)) == held.get("started")


def _machine() -> str:
    """Returns the boot of this machine and the namespace of its process numbers.

    Two containers or machines may have the same host name.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def _started(process: int) -> str | None:
    """Returns the clock tick at which a process started; None if it does not run."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None
