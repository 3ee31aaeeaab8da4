"""What a machine says of its end; signals are in tests/faults/test_interruption.py."""

import http.server
import threading

import pytest

from bert_jax.distributed import preemption
from tests.commands import run_code

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
    threading.Thread(target=server.serve_forever, daemon=True).start()
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
        # The machine moves and the run with it.
        ({"maintenance-event": (200, b"MIGRATE_ON_HOST_MAINTENANCE")}, set()),
    ],
)
def test_notices_of_a_machine(server, answers, notices):
    ANSWERS.clear()
    ANSWERS.update(answers)
    assert preemption._notices() == notices
    assert preemption._is_google_machine()


def test_no_server_is_no_notice(server):
    server.shutdown()
    server.server_close()
    assert preemption._notices() == set()


def test_who_is_started_to_ignore_ctrl_c_ignores_it():
    """As a shell starts what goes to the background of a script."""
    program = """if True:
        import os, signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from bert_jax.distributed import preemption
        for begin in ("raise_interrupts", "stop_at_once", "listen", "ignore"):
            getattr(preemption, begin)()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            print(begin)
    """
    result = run_code(program)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == "ignore" and not result.stderr
