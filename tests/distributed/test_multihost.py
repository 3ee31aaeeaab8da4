"""Tests of multi-process coordination with real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import jax
import pytest
from jax.experimental import multihost_utils

from bert_jax.distributed import multihost, preemption
from bert_jax.errors import ConfigError
from tests.commands import ENV, run_code
from tests.distributed.runs import JOIN, run_pairs

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}


@pytest.mark.slow
@pytest.mark.parametrize("found", [{}, SLURM], ids=["alone", "slurm"])
def test_a_single_process_survives_a_suspension(found):
    """JAX aborts a process that has not reported for its limit, also a single one."""
    program = """
        from bert_jax import config
        from bert_jax.distributed import multihost, stopping
        stopping.HEARTBEAT_SECS = 2
        JOIN
        print("joined", flush=True)
        input()
        print("resumed", flush=True)
        multihost.time.sleep(3)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program).replace("JOIN", JOIN)],
        env=ENV | found,
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


AGREE = f"""
    from pathlib import Path
    {JOIN}
    seen = Path("DIRECTORY") / "order"
    def write():
        with seen.open("a") as file:
            file.write(str(me))
        return me
    assert multihost.agree("number", lambda: f"of {{me}}") == "of 0"
    assert multihost.any_process(me == 1) and not multihost.any_process(False)
    assert multihost.from_process_0(me == 0)
    assert not multihost.from_process_0(me == 1)
    plan = multihost.from_process_0((7 + me, 0.25 * (me + 1), 2**31 - 1 - me))
    assert plan == (7, 0.25, 2**31 - 1) and type(plan[1]) is float
    assert multihost.first_then_others("writing", write) == me
    multihost.barrier("written")
    assert seen.read_text() == "01"
    multihost.make_shared("DIRECTORY/run/deep")
    print("process", me)
    print("to stderr", me, file=sys.stderr)
"""
# What two processes that differ do -> the error.
DIFFER = {
    f"""
    multihost.SHARED_SECS = 2
    {JOIN}
    multihost.make_shared(f"DIRECTORY/host{{me}}")
    """: "--workdir=DIRECTORY/host1 of process 1 is not that of process 0; use",
    f"""
    {JOIN}
    multihost.check_same("digest", f"digest {{me}}", "corpora differ")
    multihost.barrier("never")
    """: "corpora differ (process 1: digest 1, process 0: digest 0)",
}


# A save fails in process 0. Orbax's thread there would wait for the other, for an hour.
FAIL = f"""
    {JOIN}
    import jax
    from orbax.checkpoint.checkpoint_managers import LatestN
    from bert_jax.checkpoint import integrity, manager
    from bert_jax.phases import Position

    def fail(directory):
        raise OSError(5, "Input/output error")

    integrity.seal = fail
    config.to_json = lambda: "{{}}"
    mesh = jax.make_mesh((2,), ("data",))
    array = jax.device_put(jax.numpy.zeros(2), jax.NamedSharding(mesh, jax.P("data")))
    checkpoints = manager.Checkpoints("DIRECTORY/failing", LatestN(1))
    checkpoints.save(1, {{"params": array}}, config, Position("corpus"))
    checkpoints.wait()
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The directory of the programs, and their ends."""
    directory = tmp_path_factory.mktemp("shared")
    programs = [x.replace("DIRECTORY", str(directory)) for x in (AGREE, FAIL, *DIFFER)]
    return directory, run_pairs(programs)


def test_processes_agree_and_only_process_0_prints(ended):
    directory, ((first, second), *_) = ended
    assert (first.code, second.code) == (0, 0), (first.stderr, second.stderr)
    assert first.stdout.endswith("process 0\n") and not second.stdout
    assert "to stderr 0" in first.stderr and "to stderr 1" in second.stderr


def test_a_failed_save_ends_both_processes(ended):
    _, (_, (first, second), *_) = ended
    assert (first.code, second.code) == (76, 76), first.stderr
    assert "storage failed ([Errno 5] Input/output error)" in first.stderr


def test_processes_that_differ_exit_with_both_values(ended):
    directory, (_, _, *pairs) = ended
    for pair, error in zip(pairs, DIFFER.values(), strict=True):
        error = error.replace("DIRECTORY", str(directory))
        assert [process.code for process in pair] == [2, 2]
        assert f"error: process 1: {error}" in pair[0].stderr
        assert f"error: {error}" in pair[1].stderr


@pytest.mark.slow
@pytest.mark.parametrize("process_id", [0, 1])
def test_join_exits_with_76_if_a_process_is_missing(process_id):
    program = (
        "from bert_jax import config; from bert_jax.distributed import multihost;"
        f" multihost.JOIN_SECS = 3; {JOIN}"
    )
    result = run_code(
        program,
        JAX_COORDINATOR_ADDRESS="localhost:1025",  # no server listens there
        JAX_NUM_PROCESSES="2",
        JAX_PROCESS_ID=str(process_id),
    )
    assert result.returncode == 76
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: not all processes of the run joined within 3 s")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (("h:1", None, None), "'h:1', '', ''; they must be"),
        ((None, "2", None), "'', '2', ''; they must be"),
        (("h:1", "two", "0"), "'h:1', 'two', '0'; they must be HOST:PORT"),
        (("h:1", "2", "2"), "'h:1', '2', '2'; they must be HOST:PORT"),
        *(
            ((address, "2", "0"), f"{address!r}, '2', '0'; they must be HOST:PORT")
            for address in ("node1", "node1:", ":8476", "node1:http")
        ),
    ],
)
def test_invalid_environment_is_an_error(monkeypatch, environment, message):
    for name, value in zip(multihost.ENVIRONMENT, environment, strict=True):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as error:
        multihost.join(None)
    assert message in str(error.value)


def test_one_process_without_join(tmp_path):
    """Tests of train in this process rely on it."""
    assert "JAX_COORDINATOR_ADDRESS" not in os.environ
    assert multihost.agree("x", lambda: "made") == "made"
    assert multihost.first_then_others("x", lambda: 3) == 3
    multihost.check_same("x", "1", "never")
    multihost.make_shared(str(tmp_path / "a" / "b"))
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
