"""Tests of multi-process coordination with real processes."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import jax
import pytest
from jax.experimental import multihost_utils

from bert_jax.distributed import multihost, preemption
from bert_jax.errors import ConfigError
from tests.commands import ENV
from tests.conftest import slow


def start(program: str, num_processes: int) -> list[subprocess.Popen]:
    """Starts processes that join and then run `program`, with their index as `me`."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    prologue = """
        import sys, time, pathlib
        from bert_jax.distributed import multihost
        from bert_jax.errors import ConfigError
        multihost.HEARTBEAT_SECS = 10
        multihost.JOIN_SECS = 60
        multihost.join()
        import jax
        me = jax.process_index()
    """
    text = textwrap.dedent(prologue) + textwrap.dedent(program)
    return [
        subprocess.Popen(
            [sys.executable, "-c", text],
            env=ENV
            | {
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(num_processes),
                "JAX_PROCESS_ID": str(i),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(num_processes)
    ]


def finish(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    ended = [process.communicate(timeout=180) for process in processes]
    return [
        (process.returncode, *texts)
        for process, texts in zip(processes, ended, strict=True)
    ]


@pytest.mark.slow
def test_a_single_process_survives_a_suspension():
    """JAX aborts a process that has not reported for its limit, also a single one."""
    program = """
        from bert_jax.distributed import multihost
        multihost.HEARTBEAT_SECS = 2
        multihost.join()
        print("joined", flush=True)
        input()
        print("resumed", flush=True)
        multihost.time.sleep(3)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=ENV,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "joined\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(6)
    process.send_signal(signal.SIGCONT)
    stdout, stderr = process.communicate("\n", timeout=60)
    assert (process.returncode, stdout) == (0, "resumed\n"), stderr


def test_processes_agree_and_only_process_0_prints(tmp_path):
    program = f"""
        seen = pathlib.Path("{tmp_path}") / "order"
        def write():
            with seen.open("a") as file:
                file.write(str(me))
            return me
        assert multihost.agree("number", lambda: f"of {{me}}") == "of 0"
        assert multihost.any_process(me == 2) and not multihost.any_process(False)
        assert multihost.from_process_0(me == 0)
        assert not multihost.from_process_0(me == 1)
        plan = multihost.from_process_0((7 + me, 0.25 * (me + 1), 2**31 - 1 - me))
        assert plan == (7, 0.25, 2**31 - 1) and type(plan[1]) is float
        assert multihost.first_then_others("writing", write) == me
        multihost.barrier("written")
        assert seen.read_text()[0] == "0" and sorted(seen.read_text()) == list("012")
        multihost.make_shared("workdir", "{tmp_path}/run/deep")
        print("process", me)
        print("to stderr", me, file=sys.stderr)
    """
    results = finish(start(program, 3))
    assert [code for code, _, _ in results] == [0, 0, 0], results
    printed = [
        [s for s in out.splitlines() if s[:8] == "process "] for _, out, _ in results
    ]
    assert printed == [["process 0"], [], []]
    assert all(f"to stderr {i}" in err for i, (_, _, err) in enumerate(results))
    assert list((tmp_path / "run" / "deep").iterdir()) == []


@pytest.mark.parametrize("kind", ["ConfigError", "CorruptError"])
@pytest.mark.slow
def test_config_error_of_process_0_is_raised_in_all_processes(kind):
    program = f"""
        from bert_jax.errors import {kind}
        def refuse():
            raise {kind}("config.seed=x is wrong")
        def never():
            raise AssertionError("not to be called")
        try:
            multihost.first_then_others("corpus", refuse if me == 0 else never)
        except ConfigError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)
    """
    for code, _, err in finish(start(program, 2)):
        assert code == (2 if kind == "ConfigError" else 78)
        assert "config.seed=x is wrong" in err


@pytest.mark.slow
def test_directory_that_is_not_shared_is_an_error(tmp_path):
    program = f"""
        multihost.SHARED_SECS = 2
        try:
            with multihost.exit_on_error():
                multihost.check_same("step", "5", "not raised")
                multihost.make_shared("workdir", f"{tmp_path}/host{{me}}")
        except ConfigError as error:
            print("error:", error, file=sys.stderr)
            sys.exit(2)
    """
    first, second = finish(start(program, 2))
    assert second[0] == 2
    assert "host1 of process 1 is not that of process 0" in second[2]
    assert first[0] in (1, 76)  # process 0 waited for process 1


@pytest.mark.slow
def test_check_same_error_has_both_values():
    program = """
        try:
            multihost.check_same("digest", f"digest {me}", "corpora differ")
        except ConfigError as error:
            print("check_same:", error, file=sys.stderr)
    """
    first, second = finish(start(program, 2))
    assert "check_same" not in first[2]
    assert "corpora differ (process 1: digest 1, process 0: digest 0)" in second[2]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_process_with_a_lost_peer_exits_with_76(victim):
    program = """
        print("ready", file=sys.stderr, flush=True)
        with multihost.exit_on_error():
            time.sleep(300)
    """
    processes = start(program, 2)
    assert processes[victim].stderr.readline() == "ready\n"
    assert processes[1 - victim].stderr.readline() == "ready\n"
    killed = time.monotonic()
    processes[victim].send_signal(signal.SIGKILL)
    results = finish(processes)
    assert results[victim][0] == -signal.SIGKILL
    code, _, err = results[1 - victim]
    assert code == 76
    assert f"process {1 - victim}: aborted, most likely because another process" in err
    assert time.monotonic() - killed < 60


@pytest.mark.parametrize(
    ("victim", "waits"),
    [
        (1, "multihost_utils.process_allgather(np.ones(1))"),
        slow(0, "multihost.agree('never', lambda: time.sleep(300))"),
    ],
)
def test_process_that_waits_for_a_lost_peer_prints_one_line(victim, waits):
    program = f"""
        import numpy as np
        from jax.experimental import multihost_utils
        multihost_utils.process_allgather(np.ones(1))
        print("ready", file=sys.stderr, flush=True)
        with multihost.exit_on_error():
            while True:
                {waits}
    """
    processes = start(program, 2)
    for process in processes:
        while process.stderr.readline() != "ready\n":
            assert process.poll() is None
    killed = time.monotonic()
    processes[victim].send_signal(signal.SIGKILL)
    code, _, err = finish(processes)[1 - victim]
    assert code == 76
    # The connection is lost before the coordination service reports it.
    assert time.monotonic() - killed < multihost.HEARTBEAT_SECS
    assert "another process of the run is gone; rerun the same command" in err
    assert "Traceback" not in err
    # If process 0 is lost, XLA prints an error as well.
    assert victim == 0 or err == multihost.LOST_MESSAGE + "\n"


def test_exit_now_waits_for_no_thread_and_disconnects():
    program = """
        import threading
        threading.Thread(target=threading.Event().wait).start()  # stands for XLA
        print("all is saved")
        multihost.exit_now(75)
    """
    ended = finish(start(program, num_processes=2))
    assert [(code, out) for code, out, _ in ended] == [
        (75, "all is saved\n"),
        (75, ""),
    ], ended


def test_exit_now_exits_if_the_coordinator_is_gone(monkeypatch):
    def fails():
        raise RuntimeError("the coordinator is gone")

    class Exited(BaseException):
        pass

    def fake_exit(code):
        raise Exited(code)

    monkeypatch.setattr(multihost.jax.distributed, "shutdown", fails)
    monkeypatch.setattr(multihost.os, "_exit", fake_exit)
    with pytest.raises(Exited, match="75"):
        multihost.exit_now(75)


@pytest.mark.parametrize(
    "lost",
    [
        "multihost._print_and_exit('another is gone', 76)",
        "multihost.num_processes = lambda: 2\n"
        "with multihost.exit_on_error():\n"
        "    raise ValueError('Gloo AllReduce: Connection closed by peer [::1]:1')",
    ],
)
def test_process_with_a_lost_peer_exits_with_76_without_stderr(lost):
    """Python's own exit code for closed streams would end a restart loop."""
    program = f"""
import os
from bert_jax.distributed import multihost
print("printed before")
os.close(1), os.close(2)
{lost}
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 76


@pytest.mark.parametrize("process_id", [0, slow(1)])
@pytest.mark.slow
def test_join_exits_with_76_if_a_process_is_missing(process_id):
    program = (
        "from bert_jax.distributed import multihost as m; m.JOIN_SECS = 3; m.join()"
    )
    environment = {
        "JAX_COORDINATOR_ADDRESS": "localhost:1025",  # no server listens there
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": str(process_id),
    }
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=ENV | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 76
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: not all processes of the run joined within 3 s")


@pytest.mark.slow
def test_process_that_fails_does_not_wait_for_the_others():
    program = """
        with multihost.exit_on_error():
            if me == 1:
                raise KeyError("a bug")
            time.sleep(300)
    """
    first, second = finish(start(program, 2))
    assert second[0] == 1 and "a bug" in second[2]
    assert first[0] == 76


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JAX_COORDINATOR_ADDRESS": "h:1"}, "'h:1', None, None; they must be"),
        ({"JAX_NUM_PROCESSES": "2"}, "None, '2', None; they must be"),
        (
            {
                "JAX_COORDINATOR_ADDRESS": "h:1",
                "JAX_NUM_PROCESSES": "two",
                "JAX_PROCESS_ID": "0",
            },
            "'h:1', 'two', '0'; they must be",
        ),
        (
            {
                "JAX_COORDINATOR_ADDRESS": "h:1",
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": "2",
            },
            "JAX_PROCESS_ID=2 must be below JAX_NUM_PROCESSES=2",
        ),
        *(
            (
                {
                    "JAX_COORDINATOR_ADDRESS": address,
                    "JAX_NUM_PROCESSES": "2",
                    "JAX_PROCESS_ID": "0",
                },
                f"{address!r}, '2', '0'; they must be HOST:PORT",
            )
            for address in ("node1", "node1:", ":8476", "node1:http")
        ),
    ],
)
def test_invalid_environment_is_an_error(monkeypatch, environment, message):
    for name in multihost.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as error:
        multihost.join()
    assert message in str(error.value)


def test_one_process_without_join(tmp_path):
    """Tests of train in this process rely on it."""
    assert "JAX_COORDINATOR_ADDRESS" not in os.environ
    assert multihost.agree("x", lambda: "made") == "made"
    assert multihost.first_then_others("x", lambda: 3) == 3
    multihost.check_same("x", "1", "never")
    multihost.make_shared("workdir", str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    assert not preemption.interrupted()


def test_interrupted_stays_true(monkeypatch):
    """JAX returns True once, but a run may roll back instead of saving."""
    answers = iter([False, True])
    monkeypatch.setattr(preemption, "_is_asked_to_stop", False)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(
        multihost_utils, "reached_preemption_sync_point", lambda _: next(answers)
    )
    assert [preemption.interrupted() for _ in range(4)] == [False, True, True, True]


@pytest.mark.slow
def test_full_disk_of_process_0_is_one_line():
    program = """
        import errno
        from bert_jax import cli
        def main():
            with multihost.exit_on_error():
                if me == 0:
                    raise OSError(errno.ENOSPC, "No space left", "metrics.jsonl")
                multihost.barrier("never")
        cli.run(main, "")
    """
    first, second = finish(start(program, 2))
    assert first[0] == 2 and "no space left on the disk for metrics.jsonl" in first[2]
    assert "Traceback" not in first[2]
    assert second[0] != 0
