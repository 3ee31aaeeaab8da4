"""Files that may be in a bucket: read, written whole or not at all, tried again.

A bucket answers 503 now and then, a shared file system loses its server for a minute:
what such an error stops is done again after a while, with a line on standard error. A
path that is wrong or not allowed is the user's mistake at once. TensorFlow's file
systems do what is at scheme://, Python the rest, so that processes which only touch
local files need no TensorFlow.
"""

import contextlib
import errno
import fcntl
import glob as local_glob
import io
import json
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
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bert_jax import errors
from bert_jax.errors import ConfigError, DamagedError

# The errors of flock() on file systems that have no locks, such as mounted buckets and
# Lustre mounted without -o flock.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

# A tokenizer.json of a million pieces has some 40 MB.
MAX_FILE_BYTES = 64 * 2**20

# The seventh attempt is made about a minute after the first.
ATTEMPTS = 7
FIRST_DELAY_SECS = 1.0
# A stat on a network file system or of a bucket's object takes milliseconds of waiting.
STAT_THREADS = 32
TRANSIENT = {
    errno.EIO,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ESTALE,  # of a network file system, as the following
    errno.ETIMEDOUT,
    errno.ENOTCONN,  # of a mounted bucket whose process is gone
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
# A path that cannot be, or that this user may not read or write.
USERS_ERRORS = (
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
)
# By the codes of tf.errors: UNKNOWN is what TensorFlow makes of EIO, ESTALE and more;
# 408, 429 and 5xx of a bucket are UNAVAILABLE.
TRANSIENT_CODES = {2: "unknown", 4: "timeout", 10: "aborted", 14: "unavailable"}
USERS_CODES = {
    3: "give another path",
    5: "there is no such file or bucket",
    9: "it is not such a file",
    7: "this account may not do that; give it access, or another path",
    12: "give a path of a file system that TensorFlow knows",
    16: "no credentials; gcloud auth application-default login makes them",
}

T = TypeVar("T")


def retried(do: Callable[[], T], path: str) -> T:
    """Returns do(), called again after errors that pass.

    Args:
      do: what to do; it leaves nothing half done that a second call would trip over.
      path: what it is about, for messages.

    Raises:
      ConfigError: when the path of a bucket is wrong or not allowed.
      StorageError: when the last attempt failed as well.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return do()
        except Exception as error:
            code = getattr(error, "error_code", None)  # of TensorFlow's
            if code in USERS_CODES:
                raise ConfigError(
                    f"{path}: {USERS_CODES[code]} ({_words(error)})"
                ) from (None)
            if not is_transient(error):
                raise
            if attempt == ATTEMPTS:
                raise errors.StorageError(
                    f"{path}: storage failed {ATTEMPTS} times in a row"
                    f" ({_words(error)}); call again when it is back"
                ) from error
            # Not all hosts at once.
            delay = FIRST_DELAY_SECS * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
            print(
                f"storage: {path}: {_words(error)}; again in {delay:.1f} s"
                f" ({attempt} of {ATTEMPTS - 1})",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(delay)
    raise AssertionError("the last attempt returns or raises")


def is_transient(error: BaseException) -> bool:
    """Returns whether the same may well succeed in a while."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if (number := error_number(error)) is not None:
        return number in TRANSIENT
    return getattr(error, "error_code", None) in TRANSIENT_CODES


def error_number(error: BaseException) -> int | None:
    """Returns the errno of an OSError, or of what TensorStore makes of one."""
    if isinstance(error, OSError):
        return error.errno
    # TensorStore raises ValueError("NOT_FOUND: ... [os_error_code='2'] ...").
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return int(found[1]) if found else None


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Makes a StorageError of an error that passes, where nothing can be done again.

    Args:
      what: the file, or what was done, for the message.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, errors.StorageError) or not is_transient(error):
            raise
        raise errors.StorageError(
            f"{what}: storage failed ({_words(error)}); call again when it is back"
        ) from error


def _words(error: Exception) -> str:
    words = getattr(error, "message", "") or str(error) or type(error).__name__
    return " ".join(words.split())[:200]


# -------------------------------------------------------------------------- reading


def read(path: str) -> bytes:
    """Returns a whole file."""

    def once() -> bytes:
        with _opened(path, "rb") as file:
            return file.read()

    return retried(once, path)


class Reader(io.RawIOBase):
    """A file that is read from some byte on; errors that pass do not end it."""

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
        data = retried(lambda: self._read(size), self._path)
        self._offset += len(data)
        return data

    def _read(self, size: int) -> bytes:
        if self._file is None:
            self._file = _opened(self._path, "rb")
            self._file.seek(self._offset)
        try:
            return self._file.read(size)
        except Exception:
            self._file = None  # where it stands is not known
            raise

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET:
            raise io.UnsupportedOperation("from the beginning alone")
        self._offset, self._file = offset, None
        return offset

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


def exists(path: str) -> bool:
    if not _is_remote(path):
        return retried(lambda: os.path.exists(path), path)
    return retried(lambda: _gfile().exists(path), path)


def names(directory: str) -> list[str]:
    """Returns the names in a directory, in no order."""
    if not _is_remote(directory):
        return retried(lambda: os.listdir(directory), directory)
    return retried(lambda: _gfile().listdir(directory), directory)


def glob(pattern: str) -> list[str]:
    """Returns the paths that match; ** stands for any directories of a local path."""
    if not _is_remote(pattern):
        return local_glob.glob(os.path.expanduser(pattern), recursive=True)
    return retried(lambda: _gfile().glob(pattern), pattern)


class Stat(NamedTuple):
    num_bytes: int
    changed_ns: int


def stat(path: str) -> Stat:
    """Returns a file's size and time of change."""
    if not _is_remote(path):
        found = retried(lambda: os.stat(path), path)
        return Stat(found.st_size, found.st_mtime_ns)
    found = retried(lambda: _gfile().stat(path), path)
    return Stat(found.length, found.mtime_nsec)


def stat_all(paths: Sequence[str]) -> list[Stat | None]:
    """Returns what `stat` returns for each path, STAT_THREADS at a time.

    None stands for a local path that is no file: a directory, or a broken link.
    """
    if len(paths) < 2:
        return list(map(_stat_file, paths))
    with futures.ThreadPoolExecutor(STAT_THREADS) as pool:
        return list(pool.map(_stat_file, paths))


def _stat_file(path: str) -> Stat | None:
    if _is_remote(path):
        return stat(path)
    try:
        found = retried(lambda: os.stat(path), path)
    except OSError:
        return None
    is_file = stat_lib.S_ISREG(found.st_mode)
    return Stat(found.st_size, found.st_mtime_ns) if is_file else None


# -------------------------------------------------------------------------- writing


def write(path: str, data: bytes) -> None:
    """Writes a file that is whole under its name or not there at all."""

    def fill(tmp: str) -> None:
        with _opened(tmp, "wb") as file:
            file.write(data)
            if not _is_remote(tmp):
                file.flush()
                os.fsync(file.fileno())

    write_with(path, fill)


def write_with(path: str, fill: Callable[[str], T]) -> T:
    """As `write`, but `fill` writes the file, at the temporary path that it is given.

    Returns what `fill` returns; it is called again after errors that pass.
    """

    def once() -> T:
        # A name of its own for each attempt: two may write one file at a time.
        tmp = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            result = fill(tmp)
            _rename(tmp, path)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is to be told
                _remove(tmp)
            raise
        return result

    return retried(once, path)


def is_temporary(name: str) -> bool:
    """Returns whether a file is what a killed process left of `write`."""
    return re.fullmatch(r".+\.[0-9a-f]{32}\.tmp", name) is not None


def make_directory(path: str) -> None:
    """Makes a directory, and those above it, unless it is there."""
    if not _is_remote(path):
        retried(lambda: os.makedirs(path, exist_ok=True), path)
    else:
        retried(lambda: _gfile().makedirs(path), path)


def remove(path: str) -> None:
    """Removes a file, if it is there."""
    retried(lambda: _remove(path), path)


def remove_directory(path: str) -> None:
    """Removes a directory with all that is in it."""
    if not _is_remote(path):
        shutil.rmtree(path)
    else:
        retried(lambda: _gfile().rmtree(path), path)


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


def _opened(path: str, mode: str) -> Any:
    return _gfile().GFile(path, mode) if _is_remote(path) else open(path, mode)


def _is_remote(path: str) -> bool:
    return "://" in path


def _gfile() -> Any:
    from bert_jax.lazy_tensorflow import tf

    return tf.io.gfile


def check_size(path: Path) -> None:
    """Raises ConfigError when a file is larger than any of a tokenizer is."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} has over {MAX_FILE_BYTES // 2**20} MiB, which no such file needs;"
            " it is not opened"
        )


def read_json(path: Path, remedy: str = "fetch it again") -> dict[str, Any]:
    """Reads a JSON file that holds one object.

    Args:
      path: of the file.
      remedy: what the error message advises.

    Raises:
      DamagedError: if the file cannot be read or holds no JSON object.
      ConfigError: if the file is larger than any file of this kind.
    """
    try:
        check_size(path)
        value = json.loads(path.read_text(encoding="utf-8"))
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DamagedError(f"{path} is not a JSON object; {remedy}")
    return value


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


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
