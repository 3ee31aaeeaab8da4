"""Local files and directories that this program makes: never through a link.

A directory that comes from elsewhere, such as a workdir or an unfinished corpus, may
have links in the place of files that are written, truncated or removed.
"""

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import IO, Any

from bert_jax.errors import ConfigError

# The errors of flock() on file systems that have no locks, such as mounted buckets and
# Lustre mounted without -o flock.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def open_own(path: str | Path, mode: str, **options: Any) -> IO[Any]:
    """Opens a file to write to it, like `open`; a link or a device is a ConfigError."""
    return open(path, mode, opener=_open_regular, **options)


def _open_regular(path: str, flags: int) -> int:
    # O_NONBLOCK: opening a FIFO would wait for its reader.
    special = ConfigError(f"{path} is not a regular file; remove it")
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(f"{path} is a link; remove it") from None
        if error.errno == errno.ENXIO:
            raise special from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise special
    return file


def acquire(file: int) -> bool:
    """Locks an open file until this process ends; False if another one has the lock.

    True on a file system without locks, which cannot protect the file.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno not in NO_LOCKS:
            raise
    return True


def private_directory(path: str) -> None:
    """Creates a directory with mode 0700, or checks that an existing one is private."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    if problem := why_not_private(path):
        raise ConfigError(f"{path} {problem}; remove it, or use another directory")


def why_not_private(path: str) -> str:
    """Returns why other users could replace files in a directory, "" if none can."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written to by other users (chmod go-w {path})"
    return ""
