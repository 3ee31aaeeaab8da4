"""One run writes to a workdir at a time."""

import errno
import fcntl
import os
import socket
from pathlib import Path

from bert_jax.config import ConfigError

LOCK_FILE = ".lock"
# What file systems without locks answer, buckets above all.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def hold(workdir: str) -> None:
    """Takes the workdir for this process until it ends, in whatever way.

    Raises:
      ConfigError: when another process has it; the message names that.
    """
    path = Path(workdir) / LOCK_FILE
    # Never closed: the kernel gives it back at the end of the process, kill -9 too.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            os.close(file)
            return
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        holder = os.read(file, 200).decode(errors="replace").strip() or "a process"
        os.close(file)
        raise ConfigError(
            f"--workdir={workdir} is being written by {holder}; wait for it or stop it,"
            " or give another --workdir"
        ) from None
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
