"""Tests of retries, of errors that are not retried, and of atomic writes."""

import errno
import os
import re

import pytest

from bert_jax import errors, storage
from bert_jax.errors import ConfigError
from bert_jax.lazy_tensorflow import tf

TRANSIENT = [
    ConnectionResetError("reset"),
    TimeoutError(),
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.ESTALE, "Stale file handle"),
    tf.errors.UnavailableError(None, None, "503 Backend Error"),
    tf.errors.DeadlineExceededError(None, None, "timed out"),
    tf.errors.AbortedError(None, None, "aborted"),
    tf.errors.UnknownError(None, None, "Input/output error"),
]
PERMANENT = [
    OSError(errno.ENOSPC, "No space left on device"),
    PermissionError(errno.EACCES, "Permission denied"),
    FileNotFoundError(errno.ENOENT, "No such file"),
    tf.errors.DataLossError(None, None, "corrupted record"),
    tf.errors.ResourceExhaustedError(None, None, "No space left on device"),
    ValueError("a bug"),
]
USERS = [
    (tf.errors.PermissionDeniedError(None, None, "403"), "permission denied"),
    (tf.errors.NotFoundError(None, None, "404"), "there is no such file or bucket"),
    (tf.errors.UnauthenticatedError(None, None, "401"), "no credentials"),
    (tf.errors.UnimplementedError(None, None, "s4"), "one that TensorFlow supports"),
]


@pytest.fixture
def slept(monkeypatch):
    delays = []
    monkeypatch.setattr(storage.time, "sleep", delays.append)
    return delays


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
    assert storage.with_retries(do, "gs://b/x") == "done"
    assert len(calls) == 4
    assert 0.5 <= slept[0] <= 1 <= slept[1] <= 2 <= slept[2] <= 4
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(
        r"storage: gs://b/x: .+; retrying in \d\.\d s \(2 of 6\)", lines[1]
    )


def test_delays_are_random(slept, capsys):
    """Equal delays would make all hosts retry at the same time."""
    for _ in range(20):
        storage.with_retries(failing(TimeoutError(), 1)[0], "x")
    assert len(set(slept)) == 20


@pytest.mark.parametrize("error", PERMANENT, ids=named)
def test_other_errors_are_raised_at_once(error, slept):
    do, calls = failing(error, 1)
    with pytest.raises(type(error)):
        storage.with_retries(do, "x")
    assert len(calls) == 1 and not slept


@pytest.mark.parametrize(("error", "message"), USERS, ids=lambda x: named(x))
def test_denied_path_is_a_config_error(error, message, slept):
    do, calls = failing(error, 1)
    with pytest.raises(
        ConfigError, match=f"^gs://b/x: .*{message}.* \\({error.message}"
    ):
        storage.with_retries(do, "gs://b/x")
    assert len(calls) == 1 and not slept


def test_storage_error_after_seven_attempts(slept, capsys):
    do, calls = failing(tf.errors.UnavailableError(None, None, "503"), 99)
    with pytest.raises(errors.StorageError, match="gs://b/x: .*7 times in a row .503"):
        storage.with_retries(do, "gs://b/x")
    assert len(calls) == 7 and 30 <= sum(slept) <= 63
    # A StorageError must not be handled like a mistake of the user.
    assert not issubclass(errors.StorageError, ConfigError)


def test_write_is_atomic(tmp_path, monkeypatch):
    path = str(tmp_path / "file")

    def fail(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            storage.write(path, b"content")
    assert os.listdir(tmp_path) == []
    storage.write(path, b"content")
    assert storage.read(path) == b"content"


@pytest.mark.parametrize("scheme", ["", "file://", "ram://"])
def test_failed_write_is_retried(tmp_path, monkeypatch, scheme, slept, capsys):
    directory = f"{scheme}{tmp_path}/made"
    path, seen = f"{directory}/file", []
    storage.make_directory(directory)
    rename = storage._rename

    def fail_once(tmp, path):
        seen.append(tmp)
        if len(seen) == 1:
            raise OSError(errno.EIO, "Input/output error")
        rename(tmp, path)

    monkeypatch.setattr(storage, "_rename", fail_once)
    storage.write(path, b"content")
    assert storage.read(path) == b"content"
    assert storage.names(directory) == ["file"]
    assert storage.stat(path)[0] == 7 and storage.glob(f"{directory}/f*") == [path]
    assert len(set(seen)) == 2
    assert all(storage.is_temporary(os.path.basename(tmp)) for tmp in seen)
    storage.remove(path)
    storage.remove(path)  # a missing file is no error
    assert not storage.exists(path)
    storage.remove_directory(directory)
    assert not storage.exists(directory)


def test_reader_resumes_at_its_offset_after_an_error(
    tmp_path, monkeypatch, slept, capsys
):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 40)
    opened, reads = storage._open, []

    class Failing:
        def __init__(self, path, mode):
            self._file = opened(path, mode)
            self.seek, self.close = self._file.seek, self._file.close

        def read(self, size):
            reads.append(size)
            data = self._file.read(size)
            if len(reads) % 3 == 0:  # the data is lost
                raise ConnectionResetError("reset by peer")
            return data

    monkeypatch.setattr(storage, "_open", Failing)
    with storage.Reader(str(path)) as file:
        head = file.read(10)
        file.seek(0)
        parts = [*iter(lambda: file.read(1000), b"")]
    assert b"".join(parts) == path.read_bytes() and head == bytes(range(10))
    assert len(slept) == len(reads) // 3
