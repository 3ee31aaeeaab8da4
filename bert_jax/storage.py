"""Local and bucket files: atomic writes, and retries after transient errors.

A bucket occasionally answers 503, and a shared file system may lose its server for a
minute. An operation that fails with such an error is retried with backoff, and logged
on standard error. A path that is invalid or not permitted raises a ConfigError at once.
TensorFlow's file systems handle paths with a scheme://, hub.py those of hf://, Python
all others, so that processes that only use local files do not import TensorFlow.
"""

import contextlib
import errno
import fcntl
import glob as local_glob
import io
import os
import random
import re
import shutil
import stat as stat_lib
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple, TypeVar

from bert_jax import errors, hub
from bert_jax.errors import ConfigError

# The errors of flock() on file systems that have no locks, such as mounted buckets and
# Lustre mounted without -o flock.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

# The seventh attempt is made about a minute after the first.
ATTEMPTS = 7
FIRST_DELAY_SECS = 1.0
# A stat of a file on a network file system or in a bucket takes milliseconds.
STAT_THREADS = 32
TRANSIENT = {
    errno.EIO,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ESTALE,  # this and the following: network file systems
    errno.ETIMEDOUT,
    errno.ENOTCONN,  # also a mounted bucket whose process has died
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENETRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
}
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
# The path is invalid, or this user may not read or write it.
USERS_ERRORS = (
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
)
# Keys are codes of tf.errors. TensorFlow maps EIO, ESTALE and others to UNKNOWN, and a
# bucket's 408, 429 and 5xx to UNAVAILABLE.
TRANSIENT_CODES = {2: "unknown", 4: "timeout", 10: "aborted", 14: "unavailable"}
USERS_CODES = {
    3: "invalid path; use another path",
    5: "there is no such file or bucket",
    9: "wrong kind of file; use another path",
    7: "permission denied; give this account access, or use another path",
    12: "unknown file system; use a path of one that TensorFlow supports",
    16: "no credentials; create them with gcloud auth application-default login",
}

T = TypeVar("T")


def with_retries(do: Callable[[], T], path: str) -> T:
    """Calls do(), retrying transient errors with backoff.

    Args:
      do: the operation; it must be safe to repeat after an error.
      path: the file that it reads or writes, for messages.

    Returns:
      The result of do().

    Raises:
      ConfigError: if the path of a bucket is invalid or not permitted.
      StorageError: if the last attempt fails.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return do()
        except Exception as error:
            code = getattr(error, "error_code", None)  # of TensorFlow's errors
            if code in USERS_CODES:
                raise ConfigError(
                    f"{path}: {USERS_CODES[code]} ({_reason(error)})"
                ) from None
            if not is_transient(error):
                raise
            if attempt == ATTEMPTS:
                raise errors.StorageError(
                    f"{path}: storage failed {ATTEMPTS} times in a row"
                    f" ({_reason(error)}); rerun the same command when storage is"
                    " available"
                ) from error
            # Random delays, so that hosts do not retry at the same time.
            delay = FIRST_DELAY_SECS * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
            print(
                f"storage: {path}: {_reason(error)}; retrying in {delay:.1f} s"
                f" ({attempt} of {ATTEMPTS - 1})",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(delay)
    raise AssertionError("the last attempt returns or raises")


def is_transient(error: BaseException) -> bool:
    """Returns whether the operation that raised an error may succeed if retried."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if (number := error_number(error)) is not None:
        return number in TRANSIENT
    return getattr(error, "error_code", None) in TRANSIENT_CODES


def error_number(error: BaseException) -> int | None:
    """Returns the errno of an OSError, or of a TensorStore error caused by one."""
    if isinstance(error, OSError):
        return error.errno
    # TensorStore raises ValueError("NOT_FOUND: ... [os_error_code='2'] ...").
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return int(found[1]) if found else None


@contextlib.contextmanager
def raise_storage_errors(what: str) -> Iterator[None]:
    """Converts transient errors to StorageError where the operation cannot be retried.

    Args:
      what: the file or the failed operation, for the message.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, errors.StorageError) or not is_transient(error):
            raise
        raise errors.StorageError(
            f"{what}: storage failed ({_reason(error)}); rerun the same command when"
            " storage is available"
        ) from error


def _reason(error: Exception) -> str:
    text = getattr(error, "message", "") or str(error) or type(error).__name__
    return " ".join(text.split())[:200]


# -------------------------------------------------------------------------- reading


def read(path: str) -> bytes:
    """Returns the contents of a file."""

    def once() -> bytes:
        with _open(path, "rb") as file:
            return file.read()

    return with_retries(once, path)


class Reader(io.RawIOBase):
    """A file opened for reading from any offset, with retries."""

    def __init__(self, path: str):
        self._path, self._offset = path, 0
        self._file: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        data = with_retries(lambda: self._read(size), self._path)
        self._offset += len(data)
        return data

    def _read(self, size: int) -> bytes:
        if self._file is None:
            self._file = _open(self._path, "rb")
            self._file.seek(self._offset)
        try:
            return self._file.read(size)
        except Exception:
            self._file = None  # its position is unknown after an error
            raise

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._offset
        elif whence == os.SEEK_END:
            offset += stat(self._path).num_bytes
        self._offset = offset
        if self._file is not None:
            self._file.seek(offset)
        return offset

    def tell(self) -> int:
        return self._offset

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


def exists(path: str) -> bool:
    if not _is_remote(path):
        return with_retries(lambda: os.path.exists(path), path)
    return with_retries(lambda: _gfile().exists(path), path)


def names(directory: str) -> list[str]:
    """Returns the names in a directory, in arbitrary order."""
    if not _is_remote(directory):
        return with_retries(lambda: os.listdir(directory), directory)
    return with_retries(lambda: _gfile().listdir(directory), directory)


def glob(pattern: str) -> list[str]:
    """Returns the paths that match a pattern; ** is supported in local paths only."""
    if not _is_remote(pattern):
        return local_glob.glob(os.path.expanduser(pattern), recursive=True)
    return with_retries(lambda: _gfile().glob(pattern), pattern)


class Stat(NamedTuple):
    num_bytes: int
    changed_ns: int


def stat(path: str) -> Stat:
    """Returns the size and modification time of a file."""
    if path.startswith(hub.SCHEME):  # its path has a commit, so it never changes
        return Stat(with_retries(lambda: hub.num_bytes(path), path), 0)
    if not _is_remote(path):
        found = with_retries(lambda: os.stat(path), path)
        return Stat(found.st_size, found.st_mtime_ns)
    found = with_retries(lambda: _gfile().stat(path), path)
    return Stat(found.length, found.mtime_nsec)


def stat_all(paths: Sequence[str]) -> list[Stat | None]:
    """Returns `stat` of each path, using STAT_THREADS threads.

    The result is None for a local path that is not a regular file, such as a directory
    or a broken link.
    """
    with futures.ThreadPoolExecutor(STAT_THREADS) as pool:
        return list(pool.map(_stat_file, paths))


def _stat_file(path: str) -> Stat | None:
    if _is_remote(path):
        return stat(path)
    try:
        found = with_retries(lambda: os.stat(path), path)
    except OSError:
        return None
    is_file = stat_lib.S_ISREG(found.st_mode)
    return Stat(found.st_size, found.st_mtime_ns) if is_file else None


# -------------------------------------------------------------------------- writing


def write(path: str, data: bytes) -> None:
    """Writes a file atomically: the path has the complete file or does not change."""

    def fill(tmp: str) -> None:
        with _open(tmp, "wb") as file:
            file.write(data)
            if not _is_remote(tmp):
                file.flush()
                os.fsync(file.fileno())

    write_with(path, fill)


def write_with(path: str, fill: Callable[[str], T]) -> T:
    """Writes a file atomically with a function that writes to a given path.

    Args:
      path: the path of the file.
      fill: writes the file to the temporary path that is passed to it; called again
        after transient errors.

    Returns:
      The result of `fill`.
    """

    def once() -> T:
        # Each attempt has its own name, because two processes may write the same file.
        tmp = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            result = fill(tmp)
            _rename(tmp, path)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is raised
                _remove(tmp)
            raise
        return result

    return with_retries(once, path)


def is_temporary(name: str) -> bool:
    """Returns whether a name is that of a temporary file of `write`."""
    return re.fullmatch(r".+\.[0-9a-f]{32}\.tmp", name) is not None


def make_directory(path: str) -> None:
    """Makes a directory and its parents, if they do not exist."""
    if not _is_remote(path):
        with_retries(lambda: os.makedirs(path, exist_ok=True), path)
    else:
        with_retries(lambda: _gfile().makedirs(path), path)


def remove(path: str) -> None:
    """Removes a file, if it exists."""
    with_retries(lambda: _remove(path), path)


def remove_directory(path: str) -> None:
    """Removes a directory and its contents."""
    if not _is_remote(path):
        shutil.rmtree(path)
    else:
        with_retries(lambda: _gfile().rmtree(path), path)


def _remove(path: str) -> None:
    if not _is_remote(path):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
    elif _gfile().exists(path):
        _gfile().remove(path)


def _rename(tmp: str, path: str) -> None:
    if not _is_remote(path):
        os.replace(tmp, path)
    else:
        _gfile().rename(tmp, path, overwrite=True)


def _open(path: str, mode: str) -> Any:
    if path.startswith(hub.SCHEME):
        return hub.File(path)
    return _gfile().GFile(path, mode) if _is_remote(path) else open(path, mode)


def _is_remote(path: str) -> bool:
    return "://" in path


def _gfile() -> Any:
    from bert_jax.lazy_tensorflow import tf

    return tf.io.gfile


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
