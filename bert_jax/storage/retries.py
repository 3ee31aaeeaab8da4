"""Retries after transient errors of disks, network file systems and buckets.

A bucket occasionally answers 503, and a shared file system may lose its server for a
minute. An operation that fails with such an error is retried with backoff, and logged
on standard error. A URL that is invalid or not permitted raises a ConfigError at once.
"""

import contextlib
import errno
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from bert_jax import errors, hub
from bert_jax.errors import ConfigError
from bert_jax.storage import buckets

# The seventh attempt is made about a minute after the first.
ATTEMPTS = 7
FIRST_DELAY_SECS = 1.0
TRANSIENT = {
    errno.EIO,
    errno.EAGAIN,
    errno.EBUSY,  # this and EREMOTEIO: s3fs's translation of 503 and 500
    errno.EREMOTEIO,
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
T = TypeVar("T")


def with_retries(do: Callable[[], T], path: str) -> T:
    """Calls do(), which must be safe to repeat, and retries transient errors.

    Raises MissingObjectError or another ConfigError for a path in a bucket, and
    StorageError if the last attempt fails.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if path.startswith(hub.SCHEME):
                with hub.raise_errors(path):
                    return do()
            return do()
        except Exception as error:
            what = buckets.message(error) if buckets.is_remote(path) else None
            if what:
                is_missing = isinstance(error, FileNotFoundError)
                kind = errors.MissingObjectError if is_missing else ConfigError
                raise kind(f"{path}: {what} ({reason(error)})") from None
            if not is_transient(error):
                if is_full_disk(error) and not buckets.is_remote(path):
                    raise full_disk(path) from error
                raise
            if attempt == ATTEMPTS:
                raise errors.StorageError(
                    f"{path}: storage failed {ATTEMPTS} times in a row"
                    f" ({reason(error)}); rerun the same command when storage is"
                    " available"
                ) from error
            # Random delays, so that hosts do not retry at the same time.
            delay = FIRST_DELAY_SECS * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
            print(
                f"storage: {path}: {reason(error)}; retrying in {delay:.1f} s"
                f" ({attempt} of {ATTEMPTS - 1})",
                file=sys.stderr,
            )
            time.sleep(delay)
    raise AssertionError("the last attempt returns or raises")


def is_transient(error: BaseException) -> bool:
    """Returns whether the operation that raised an error may succeed if retried."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if (status := buckets.status(error)) is not None:
        return status in buckets.TRANSIENT_STATUSES
    if type(error).__module__.startswith("tensorflow."):  # "...; Input/output error"
        return any(f"; {os.strerror(code)}" in str(error) for code in TRANSIENT)
    return error_number(error) in TRANSIENT


def error_number(error: BaseException) -> int | None:
    """Returns the errno of an OSError, or of a TensorStore error caused by one."""
    if isinstance(error, OSError):
        return error.errno
    # TensorStore raises ValueError("NOT_FOUND: ... [os_error_code='2'] ...").
    match = re.search(r"os_error_code='(\d+)'", str(error))
    return int(match[1]) if match else None


def is_full_disk(error: BaseException) -> bool:
    """Returns whether a disk or a quota is full, by errors of C++ and Rust as well."""
    if error_number(error) in (errno.ENOSPC, errno.EDQUOT):
        return True
    return bool(re.search(r"No space left on device|\(os error 28\)", str(error)))


def full_disk(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


@contextlib.contextmanager
def raise_storage_errors(what: str) -> Iterator[None]:
    """Converts transient errors to StorageError where an operation cannot be retried.

    `what` is the file or the operation, for the message.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, errors.StorageError) or not is_transient(error):
            raise
        raise errors.StorageError(
            f"{what}: storage failed ({reason(error)}); rerun the same command when"
            " storage is available"
        ) from error


def reason(error: BaseException) -> str:
    """Returns the message of an error as one line of at most 200 characters."""
    text = getattr(error, "message", "") or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]
