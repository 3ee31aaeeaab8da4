"""Tests of retries, and of errors that are not retried."""

import errno
import re

import aiohttp
import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError
from gcsfs.retry import HttpError
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from bert_jax import errors
from bert_jax.errors import ConfigError
from bert_jax.storage import retries

UNAVAILABLE = HttpError({"code": 503, "message": "Backend Error"})
TRANSIENT = [
    ConnectionResetError("reset"),
    TimeoutError(),
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.ESTALE, "Stale file handle"),
    OSError(errno.EBUSY, "Please reduce your request rate."),
    UNAVAILABLE,
    HttpError({"code": "429", "message": "Too Many Requests"}),
    aiohttp.ServerDisconnectedError(),
    TransportError("no route to host"),
    RefreshError("the metadata server is slow", retryable=True),
    EndpointConnectionError(endpoint_url="http://s3"),
    ValueError("UNAVAILABLE: Error reading gs://b/x"),
]
PERMANENT = [
    OSError(errno.ENOSPC, "No space left on device"),
    PermissionError(errno.EACCES, "Permission denied"),
    FileNotFoundError(errno.ENOENT, "No such file"),
    ValueError("a bug"),
]
USERS = [
    (OSError("Forbidden: b/x"), "permission denied"),
    (PermissionError("Access Denied"), "permission denied"),
    (FileNotFoundError("b/x"), "there is no such file or bucket"),
    (HttpError({"code": 401, "message": "Anonymous caller"}), "no credentials"),
    (DefaultCredentialsError("none found"), "no credentials"),
    (RefreshError("revoked"), "no credentials"),
    (NoCredentialsError(), "no credentials"),
    (ValueError("PERMISSION_DENIED: gs://b/x"), "permission denied"),
]


def failing(error, times):
    """Returns a function that raises at its first calls, and the list of its calls."""
    calls = []

    def do():
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    return do, calls


def named(error):
    return type(error).__name__


@pytest.mark.parametrize("error", TRANSIENT, ids=named)
def test_transient_errors_are_retried_and_logged(error, slept, capsys):
    do, calls = failing(error, 3)
    assert retries.with_retries(do, "gs://b/x") == "done"
    assert len(calls) == 4
    assert 0.5 <= slept[0] <= 1 <= slept[1] <= 2 <= slept[2] <= 4
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(
        r"storage: gs://b/x: .+; retrying in \d\.\d s \(2 of 6\)", lines[1]
    )


@pytest.mark.parametrize("error", PERMANENT, ids=named)
def test_other_errors_are_raised_at_once(error, slept):
    do, calls = failing(error, 1)
    with pytest.raises(type(error)):
        retries.with_retries(do, "x")
    assert len(calls) == 1 and not slept


def test_the_error_of_a_full_disk_names_the_local_file():
    do, _ = failing(PERMANENT[0], 2)
    with pytest.raises(OSError, match="No space left on device: 'x'"):
        retries.with_retries(do, "x")
    with pytest.raises(OSError, match="No space left on device$"):
        retries.with_retries(do, "gs://b/x")  # a temporary directory is full


@pytest.mark.parametrize(("error", "message"), USERS, ids=lambda x: named(x))
def test_denied_path_is_a_config_error(error, message, slept):
    do, calls = failing(error, 1)
    with pytest.raises(ConfigError, match=f"^gs://b/x: .*{message}.* \\("):
        retries.with_retries(do, "gs://b/x")
    assert len(calls) == 1 and not slept


def test_storage_error_after_seven_attempts(slept, capsys):
    do, calls = failing(UNAVAILABLE, 99)
    with pytest.raises(errors.StorageError, match="gs://b/x: .*7 times in a row .Back"):
        retries.with_retries(do, "gs://b/x")
    assert len(calls) == 7 and 30 <= sum(slept) <= 63
    # A StorageError must not be handled like a mistake of the user.
    assert not issubclass(errors.StorageError, ConfigError)
