"""Advisory file locks: one process at a time writes to a directory."""

import errno
import fcntl
import os
import socket
from pathlib import Path

from bert_jax.errors import ConfigError

LOCK_FILE = ".lock"
# The errors of flock() on file systems that have no locks, such as mounted buckets and
# Lustre mounted without -o flock.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def hold(workdir: str) -> None:
    """Takes the workdir for this process until it ends, in whatever way.

    Raises:
      ConfigError: when another process has it; the message names that.
    """
    path = Path(workdir) / LOCK_FILE
    # Never closed: the kernel gives it back at the end of the process, kill -9 too.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if not acquire(file):
        holder = os.read(file, 200).decode(errors="replace").strip() or "a process"
        os.close(file)
        raise ConfigError(
            f"--workdir={workdir} is being written by {holder}; wait for it or stop it,"
            " or give another --workdir"
        )
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def acquire(file: int) -> bool:
    """Locks an open file for this process, without waiting.

    Returns:
      False when another process holds the lock. True when the lock was acquired, and
      also where the file system has no locks: work goes ahead unprotected there.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno not in NO_LOCKS:
            raise
    return True
