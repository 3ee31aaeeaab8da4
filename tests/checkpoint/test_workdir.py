"""A workdir has one writer, whose end gives it back whatever that was."""

import signal
import subprocess
import sys

import pytest

from bert_jax.checkpoint import workdir
from bert_jax.errors import ConfigError
from tests.commands import PATH

HOLD = (
    "import sys, time; from bert_jax.checkpoint import workdir; "
    "workdir.hold(sys.argv[1]);"
)


def start(tmp_path, then="print('held', flush=True); time.sleep(600)"):
    return subprocess.Popen(
        [sys.executable, "-c", HOLD + then, tmp_path],
        env={"PYTHONPATH": PATH},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_second_is_told_of_the_first_until_that_is_killed(tmp_path):
    first = start(tmp_path)
    assert first.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"written by process {first.pid} on"):
        workdir.hold(str(tmp_path))
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert start(tmp_path, "print('mine')").communicate()[0] == "mine\n"


def test_file_systems_without_locks_are_taken_as_they_are(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(workdir.errno.EOPNOTSUPP, "no locks here")

    monkeypatch.setattr(workdir.fcntl, "flock", refuse)
    workdir.hold(str(tmp_path))
