"""Training in several processes of one machine: losses, signals, lost processes."""

import contextlib
import json
import os
import pathlib
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest

from launch import local
from tests.commands import ENV, ROOT, capture, run_well, small_run

LAST = 30
# Long enough for a signal, which takes a second to reach all processes.
LONG = {"phases[0].num_steps": 150}


def arguments(text: pathlib.Path, workdir: str, **changes) -> list[str]:
    values = {
        "model.num_hidden_layers": 1,  # compilation takes most of the time
        "data.num_shards": 4,
        "data.num_streams": 2,
        "phases[0].num_steps": LAST,
        "log_every_steps": 1,
    }
    return [*small_run(text, **values | changes), f"--workdir={text / workdir}"]


def command(num_processes: int, *rest: str, devices: int = 1) -> list[str]:
    return [
        sys.executable,
        str(ROOT / "launch/local.py"),
        f"--processes={num_processes}",
        f"--devices_per_process={devices}",
        *rest,
    ]


def start(
    num_processes: int, *rest: str, devices: int = 1, **options
) -> subprocess.Popen:
    return subprocess.Popen(
        command(num_processes, *rest, devices=devices),
        env={name: value for name, value in ENV.items() if name != "XLA_FLAGS"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run_processes(num_processes: int, *rest: str, devices: int = 1) -> str:
    process = start(num_processes, *rest, devices=devices)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stdout + stderr
    return stdout


def losses(text: pathlib.Path, workdir: str) -> dict[int, float]:
    """Returns the loss of each step, and the held-out loss of step n at -n."""
    found = {}
    for line in (text / workdir / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        held_out = "eval_masked_lm_loss" in values
        step = -values["step"] if held_out else values["step"]
        found[step] = values["eval_masked_lm_loss" if held_out else "loss"]
    return found


def children(pid: int) -> list[int]:
    """Returns a process's children, those of launch/local.py in order."""
    of = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return sorted(map(int, of.read_text().split()))


def wait_for_step(process: subprocess.Popen, step: int) -> None:
    assert process.stdout is not None
    while not process.stdout.readline().startswith(f"step {step}/"):
        assert process.poll() is None, process.communicate()


@pytest.fixture(scope="module")
def output(text) -> str:
    """Output of a run in one process with one device."""
    return run_well("bert_jax.train", *arguments(text, "straight"))


@pytest.fixture(scope="module")
def straight(text, output) -> dict[int, float]:
    """Losses of that run at every step."""
    return losses(text, "straight")


@pytest.mark.slow
def test_processes_compute_the_losses_of_one(text, output, straight):
    mesh = {"mesh.data": 1, "mesh.fsdp": 2, "mesh.tensor": 2}
    stdout = run_processes(2, *arguments(text, "split", **mesh), devices=2)
    assert "in 2 processes" in stdout
    assert stdout.count(f"step {LAST}/{LAST}") == 1  # only process 0 prints
    assert losses(text, "split") == pytest.approx(straight, rel=1e-5)
    majority = r"against \d+% for the more frequent label"
    assert re.findall(majority, stdout) == re.findall(majority, output) != []


@pytest.mark.slow
def test_weights_of_another_run_are_the_same_in_two_processes(text, straight):
    """Both processes hold all rows."""
    changes = {
        "init_from": str(text / "straight"),
        "phases[0].num_steps": 10,
        "checkpoint.every_steps": 10,
        "eval.every_steps": 10,
    }
    run_well("bert_jax.train", *arguments(text, "from_one", **changes))
    split = changes | {"mesh.data": 1, "mesh.tensor": 2}
    run_processes(2, *arguments(text, "from_two", **split))
    expected = losses(text, "from_one")
    assert expected[1] < 0.8 * straight[1]
    assert losses(text, "from_two") == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_ctrl_c_in_the_first_seconds_leaves_no_process(text):
    process = start(2, *arguments(text, "early", **LONG), start_new_session=True)
    while len(started := children(process.pid)) < 2:
        time.sleep(0.01)
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    try:
        stdout, stderr = process.communicate(timeout=200)  # JOIN_SECS is 300
    finally:
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
    assert process.returncode in (75, 76), stdout + stderr


@pytest.mark.slow
def test_four_processes_save_and_one_resumes(text):
    """Sends SIGINT to the process group, as a terminal does: all save the same step."""
    run_well("bert_jax.train", *arguments(text, "straight_long", **LONG))
    straight = losses(text, "straight_long")
    process = start(4, *arguments(text, "four", **LONG), start_new_session=True)
    wait_for_step(process, 10)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 75, stdout + stderr
    assert "processes ended with 75, 75, 75, 75" in stderr
    assert "Traceback" not in stderr
    step = max(
        int(path.name) for path in (text / "four/checkpoints").glob("[0-9]*[0-9]")
    )
    assert f"interrupted: step {step} is saved" in stdout
    assert 10 <= step < max(straight)
    stdout = run_well("bert_jax.train", *arguments(text, "four", **LONG))
    assert f"resuming at step {step}" in stdout
    assert losses(text, "four") == pytest.approx(straight, rel=1e-5)


@pytest.mark.slow
def test_a_killed_process_ends_the_other_and_the_loop_resumes(text, straight):
    """Kills process 0; the other exits with 76, and restart.sh finishes the run.

    The second is killed in faults/test_resume_matrix.py.
    """
    workdir = "killed"
    rest = arguments(text, workdir, **{"checkpoint.every_steps": 10})
    loop = subprocess.Popen(
        [ROOT / "launch/restart.sh", *command(2, *rest)],
        env=ENV | {"BERT_JAX_FIRST_DELAY": "1"},
        stdout=subprocess.PIPE,
        stderr=(text / "stderr.txt").open("w"),
        text=True,
    )
    wait_for_step(loop, 11)
    while not (text / workdir / "checkpoints/10").is_dir():  # saved beside the steps
        time.sleep(0.01)
    (launcher,) = children(loop.pid)
    killed = time.monotonic()
    os.kill(children(launcher)[0], signal.SIGKILL)
    while "restart: exit code 76" not in (text / "stderr.txt").read_text():
        assert loop.poll() is None, (text / "stderr.txt").read_text()
        time.sleep(0.2)
    assert time.monotonic() - killed < 60
    stdout, _ = loop.communicate(timeout=600)
    stderr = (text / "stderr.txt").read_text()
    assert loop.returncode == 0, stdout + stderr
    assert "processes ended with -9, 76" in stderr
    assert stderr.count("another process of the run is gone") == 1
    # Orbax logs a traceback of its own if the kill interrupted a save.
    assert 'bert_jax/train.py", line' not in stderr
    assert "resuming at step" in stdout
    assert losses(text, workdir) == pytest.approx(straight, rel=1e-5)


@pytest.mark.parametrize(
    "codes",
    "0=0,0 75=75,75 76=75,76 76=-9,76 76=-9,0 1=1,76 77=77,76,76 2=2,76 78=78,76"
    " 75=3,75".split(),
)
def test_the_most_severe_exit_code_counts(codes):
    expected, found = codes.split("=")
    assert local.exit_code([*map(int, found.split(","))]) == int(expected)


def run_local(*arguments: str) -> subprocess.CompletedProcess:
    return capture(sys.executable, ROOT / "launch/local.py", *arguments)


@pytest.mark.slow
def test_an_error_of_all_processes_is_printed_once():
    result = run_local("--processes=3", "--config=configs/tinny.py")
    assert result.returncode == 2
    first, last = result.stderr.splitlines()
    assert "] error: --config=configs/tinny.py is not a file" in first
    assert last == "processes ended with 2, 2, 2"


def test_a_port_in_use_is_not_returned(monkeypatch):
    with socket.create_server(("localhost", 0)) as server:
        draws = iter([server.getsockname()[1], 0])
        monkeypatch.setattr(random, "randrange", lambda *_: next(draws))
        assert local.free_port() == 0


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_numbers_are_checked(value):
    result = run_local(f"--processes={value}")
    assert result.returncode == 2
    assert "is not a positive integer" in result.stderr
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("error: ")


def test_a_dry_run_prints_a_command_for_each_process():
    result = run_local("--processes=3", "--dry_run", "--workdir=a b")
    assert result.returncode == 0
    for i, line in enumerate(result.stdout.splitlines()):
        words = shlex.split(line)
        assert {f"JAX_PROCESS_ID={i}", "JAX_NUM_PROCESSES=3"} <= {*words}
        assert words[-3:] == ["-m", "bert_jax.train", "--workdir=a b"]
    assert result.stdout.count("\n") == 3
