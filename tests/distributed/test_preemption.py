"""Tests of preemption notices; signals are in tests/faults/test_interruption.py."""

import http.server
import threading

import pytest

from bert_jax.distributed import preemption
from tests.commands import run_program

ANSWERS: dict[str, tuple[int, bytes]] = {}


class Metadata(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.rpartition("/")[2]
        code, text = ANSWERS.get(name, (404, b"not here"))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    serve = server.serve_forever
    threading.Thread(target=serve, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    server.server_close()


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


def test_no_notices_without_a_server(server):
    server.shutdown()
    server.server_close()
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
