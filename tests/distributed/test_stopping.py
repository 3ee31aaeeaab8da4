"""Tests of the end of a run of several processes, with real processes."""

import subprocess
import sys

import pytest

from bert_jax import errors
from bert_jax.distributed import stopping
from tests.distributed.runs import JOIN, run_pairs

# The error that one process raises -> the exit code of both.
ERRORS = {
    "errors.ConfigError('config.seed=x')": errors.EXIT_USAGE,
    "OSError(28, 'No space left', 'metrics.jsonl')": errors.EXIT_USAGE,
    "errors.CorruptError('shard 3')": errors.EXIT_CORRUPT,
    "errors.DivergedError(7, 'loss is nan')": errors.EXIT_DIVERGED,
    "errors.StorageError('the bucket fails')": errors.EXIT_LOST,
    "BrokenPipeError()": errors.EXIT_BROKEN_PIPE,
    "KeyError('a bug')": 1,
}
# The other process waits there.
BARRIER, COLLECTIVE = "multihost.barrier('never')", "multihost.any_process(True)"
WAITS = (
    "multihost.wait_for(lambda: False)",
    "multihost._client().blocking_key_value_get('never', 600_000)",
    "time.sleep(600)",
    COLLECTIVE,
)
CASES = [(error, number % 2, BARRIER) for number, error in enumerate(ERRORS)]
CASES += [("errors.ConfigError('config.seed=x')", 1, wait) for wait in WAITS]


def failing(error, who, wait):
    return f"""
        {JOIN}
        if me == {who}:
            time.sleep(1)
            print("raised at", time.time(), file=sys.stderr, flush=True)
            raise {error}
        {wait}
    """


# The processes of one run end together.
OTHERS = {
    "interrupted": f"""
        {JOIN}
        time.sleep(me)
        raise errors.Interrupted("step 3 is saved")
    """,
    "a thread that compiles": f"""
        import threading
        {JOIN}
        threading.Thread(target=threading.Event().wait).start()  # stands for XLA
        print("all is saved")
        stopping.exit_now(75)
    """,
    "success": f"""
        import atexit
        {JOIN}
        atexit.register(print, "done")
        class Kept:  # until Python exits
            def __del__(self, end=os._exit):
                end(9)
        sys.kept = Kept()
    """,
    "an error after another ends the process": f"""
        {JOIN}
        if me == 1:
            raise errors.ConfigError("config.seed=x")
        while stopping._exit_code is None:
            time.sleep(0.001)
        raise ValueError("Gloo AllReduce: Connection closed by peer")
    """,
    "killed in a collective": f"""
        import signal
        {JOIN}
        {COLLECTIVE}
        print("killed at", time.time(), file=sys.stderr, flush=True)
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        {COLLECTIVE}
    """,
}


@pytest.fixture(scope="module")
def ended():
    programs = [failing(*case) for case in CASES] + list(OTHERS.values())
    return dict(zip([*CASES, *OTHERS], run_pairs(programs), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_processes_exit_with_the_code_of_the_one_that_fails(ended, case):
    error, who, _ = case
    failed, other = ended[case][who], ended[case][1 - who]
    assert (failed.code, other.code) == (ERRORS[error],) * 2, ended[case]
    raised = float(failed.stderr.partition("raised at ")[2].split()[0])
    assert max(failed.time, other.time) - raised < stopping.HEARTBEAT_SECS  # idle: 3
    (line,) = (s for s in other.stderr.splitlines() if s.startswith("error: "))
    assert line.startswith(f"error: process {who}: ")
    assert ("Traceback" in failed.stderr) == (error == "KeyError('a bug')")
    assert "Traceback" not in other.stderr


def test_interrupted_processes_wait_for_each_other(ended):
    first, second = ended["interrupted"]
    assert (first.code, second.code) == (75, 75)
    assert "interrupted: step 3 is saved; rerun" in first.stdout and not second.stdout
    found = [(e.code, e.stdout) for e in ended["a thread that compiles"]]
    assert found == [(75, "all is saved\n"), (75, "")]


def test_processes_that_succeed_do_not_exit_through_python(ended):
    """It aborted one of four runs on busy cores, inside JAX's client."""
    first, second = ended["success"]
    assert (first.code, first.stdout, second.code) == (0, "done\n", 0)


def test_error_after_another_ends_the_process_is_not_printed(ended):
    other, failed = ended["an error after another ends the process"]
    assert (other.code, failed.code) == (2, 2)
    assert other.stderr == "error: process 1: config.seed=x\n"


def test_process_whose_connection_to_another_is_lost_prints_one_line(ended):
    other, killed = ended["killed in a collective"]
    assert (other.code, killed.code) == (76, -9)
    time_line, rest = other.stderr.split("\n", 1)
    # The connection is lost before the coordination service reports it.
    assert other.time - float(time_line.split()[-1]) < stopping.HEARTBEAT_SECS
    assert rest == f"error: {stopping.LOST_MESSAGE}\n"


@pytest.mark.slow
def test_process_with_a_lost_peer_exits_with_76():
    programs = [
        f"""
            import signal
            stopping.HEARTBEAT_SECS = 10
            {JOIN}
            if me == {victim}:
                os.kill(os.getpid(), signal.SIGKILL)
            {wait}
        """
        for victim in (0, 1)
        for wait in ("time.sleep(300)", BARRIER)
    ]
    for i, pair in enumerate(run_pairs(programs)):
        other, killed = pair[1 - i // 2], pair[i // 2]
        assert (other.code, killed.code) == (76, -9)
        assert f"error: {stopping.LOST_MESSAGE}\n" in other.stderr
        assert "Traceback" not in other.stderr
        assert other.time - killed.time < 60


@pytest.mark.parametrize(
    "lost",
    [
        "stopping.exit_when_aborted('another is gone'); os.abort()",
        "stopping.stop_after(ValueError('Gloo AllReduce: Connection closed by peer'))",
    ],
)
def test_process_with_a_lost_peer_exits_with_76_without_stderr(lost):
    """Python's own exit code for closed streams would end a restart loop."""
    program = f"""
import os
from bert_jax.distributed import stopping
stopping.distributed.global_state.num_processes = 2
print("printed before")
os.close(1), os.close(2)
{lost}
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 76
