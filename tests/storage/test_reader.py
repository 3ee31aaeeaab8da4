"""Tests of bert_jax.storage.reader."""

import errno
import io
import os
import time

import pytest

from bert_jax import storage
from bert_jax.storage import reader

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def failing(tmp_path, monkeypatch, capsys):
    """Returns a function of failures: whether each next call of seek or read fails."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    monkeypatch.setattr(time, "sleep", lambda secs: None)

    def make(*failures):
        left = list(failures)

        class Failing(io.BytesIO):
            def seek(self, *args):
                fail()
                return super().seek(*args)

            def read(self, *args):
                data = super().read(*args)
                fail()  # the data is lost
                return data

        def fail():
            if left and left.pop(0):
                raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(reader, "_open", lambda path: Failing(CONTENT))
        return storage.Reader(str(path)), left

    return make


@pytest.mark.parametrize(
    "failures", [[1], [0, 1], [1, 1], [1, 0, 1, 1], [0, 1] * 6, [0, 0, 0, 1, 1]]
)
def test_bytes_are_those_of_the_offset_after_errors(failing, failures):
    file, left = failing(*failures)
    file.seek(700)
    assert file.read(7) == CONTENT[700:707] and file.tell() == 707
    assert file.read(3) == CONTENT[707:710] and not left


def test_a_file_is_read_to_its_end_with_errors_in_between(failing):
    file, left = failing(*[0, 0, 1, 0, 0, 0, 1] * 4)
    assert file.read(10) == CONTENT[:10]
    file.seek(0)
    assert b"".join(iter(lambda: file.read(1000), b"")) == CONTENT
    assert not left


def test_seek_from_the_end_is_retried(failing):
    file, left = failing(1)
    assert file.seek(-5, os.SEEK_END) == len(CONTENT) - 5 and not left
    assert file.read() == CONTENT[-5:]
    assert file.seek(-3, os.SEEK_CUR) == len(CONTENT) - 3
    assert file.read(1) == CONTENT[-3:-2]
