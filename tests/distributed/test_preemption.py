"""Tests of preemption notices; signals are in tests/faults/test_interruption.py."""

import pytest

from bert_jax.distributed import preemption
from tests import local_server
from tests.commands import run_program

ANSWERS: dict[str, tuple[int, bytes]] = {}


class Metadata(local_server.Handler):
    def do_GET(self):
        name = self.path.rpartition("/")[2]
        code, text = ANSWERS.get(name, (404, b"not here"))
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def server(monkeypatch):
    with local_server.Service(Metadata) as found:
        host = found.url.removeprefix("http://")
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        yield host


@pytest.mark.parametrize(
    ("answers", "notices"),
    [
        ({}, set()),
        ({"preempted": (200, b"FALSE"), "maintenance-event": (200, b"NONE")}, set()),
        ({"preempted": (200, b"TRUE\n")}, {"preempted"}),
        ({"preempted": (503, b"TRUE")}, set()),
        (
            {"maintenance-event": (200, b"TERMINATE_ON_HOST_MAINTENANCE")},
            {"maintenance-event"},
        ),
        # The machine is migrated while the run continues.
        ({"maintenance-event": (200, b"MIGRATE_ON_HOST_MAINTENANCE")}, set()),
    ],
)
def test_notices_of_the_metadata_server(server, answers, notices):
    ANSWERS.clear()
    ANSWERS.update(answers)
    assert preemption._notices() == notices
    assert preemption._is_google_machine()


def test_no_notices_without_a_server(monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    assert preemption._notices() == set()


def test_ignored_ctrl_c_stays_ignored():
    """A shell ignores SIGINT in background processes of a script."""
    program = """if True:
        import os, signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from bert_jax.distributed import preemption
        for function in (
            preemption.raise_interrupts,
            preemption.exit_on_signals,
            preemption.save_on_signals,
            preemption.restore_ctrl_c,
        ):
            function()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            print(function.__name__)
    """
    result = run_program(program)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == "restore_ctrl_c" and not result.stderr
