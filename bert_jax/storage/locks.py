"""Locks of files on disks, which the kernel releases when a process ends."""

import errno
import fcntl

# The errors of flock() on file systems that have no locks, such as mounted buckets and
# Lustre mounted without -o flock.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def acquire(file: int) -> bool:
    """Locks an open file for this process, without waiting.

    Returns:
      False if another process holds the lock. True if the lock was acquired, or if the
      file system has no locks and cannot protect the file.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno not in NO_LOCKS:
            raise
    return True
