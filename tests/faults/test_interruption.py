"""Ctrl-C, preemption notices, hangs, and saves by the clock."""

import pathlib
import re
import shutil
import signal
import time

import pytest

from bert_jax.checkpoint import integrity
from tests.commands import ROOT, error_of, run, run_well, small_run, start, write_text
from tests.distributed import test_preemption
from tests.runs import assert_same_bits, assert_same_metrics, exact_lines, lines

pytestmark = pytest.mark.slow
ANSWERS, server = test_preemption.ANSWERS, test_preemption.server
LAST = 300  # a notice takes a second to arrive, and a step may take 8 ms


def arguments(text, workdir, **changes) -> list[str]:
    values = {
        "phases[0].num_steps": LAST,
        "checkpoint.every_steps": LAST,
        "eval.every_steps": LAST,
        "log_every_steps": 1,
    }
    return [*small_run(text, **values | changes), f"--workdir={workdir}"]


@pytest.fixture(scope="module")
def straight(text) -> pathlib.Path:
    workdir = text / "straight"
    run_well("bert_jax.train", *arguments(text, workdir))
    return workdir


def wait_for_lines(process, workdir, number=20) -> None:
    path = workdir / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_ctrl_c_saves_and_the_same_command_resumes(text, straight, tmp_path):
    process = start("bert_jax.train", *arguments(text, tmp_path))
    wait_for_lines(process, tmp_path)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 75, stdout + stderr
    assert "interrupted: saving after this step, then stopping; press" in stderr
    assert "Traceback" not in stderr
    assert "resuming at step" in run_well("bert_jax.train", *arguments(text, tmp_path))
    assert_same_bits(tmp_path, straight, LAST)
    assert_same_metrics(tmp_path, straight)


def run_while_xla_compiles(text, tmp_path, **fault) -> tuple[int, str, str]:
    """Returns exit code and output of a run whose second phase never compiles."""
    phase = {"sequence_length": 16, "max_predictions": 3, "num_steps": LAST}
    changes = {f"phases[1].{name}": value for name, value in phase.items()}
    changes["checkpoint.every_steps"] = 20
    process = start(
        "tests.faults.faulty_train",
        f"--config={ROOT}/tests/two_phases.py",
        *arguments(text, tmp_path, **changes)[1:],
        COMPILE_FOREVER="1",
        **fault,
    )
    try:
        stdout, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, stdout, stderr


def test_an_interruption_does_not_wait_for_a_compilation(text, tmp_path):
    code, stdout, stderr = run_while_xla_compiles(text, tmp_path, KILL_AT="5:SIGTERM")
    assert code == 75, stdout + stderr
    assert "Traceback" not in stderr
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert f"step {saved.name} is saved" in stdout


def test_an_error_waits_for_a_save_and_not_for_a_compilation(text, tmp_path):
    found, stdout, stderr = run_while_xla_compiles(text, tmp_path, FAIL_AT="21")
    assert found == 1, stdout + stderr
    assert "KeyError: 'injected fault'" in stderr.splitlines()[-1]
    assert integrity.steps(str(tmp_path)) == [20]
    integrity.check(str(tmp_path), 20, "")
    logged = [line["step"] for line in lines(tmp_path) if "loss" in line]
    assert logged[:19] == list(range(1, 20))  # a line is written one step late


def test_a_second_ctrl_c_stops_at_once(text, tmp_path):
    process = start("bert_jax.train", *arguments(text, tmp_path))
    wait_for_lines(process, tmp_path)
    process.send_signal(signal.SIGINT)
    assert "saving after this step" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    # JAX looks for the first signal once a second, and may have reported it just now.
    printed = [x for x in stderr.splitlines() if "SIGTERM caught at" not in x]
    assert (process.returncode, printed) == (130, ["stopped without saving"])


NO_STEP = (
    "interrupted: no step was taken by this call; rerun the same command to resume\n"
)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("bert_jax.distributed.devices.open_devices", "SIGINT"),
        ("bert_jax.checkpoint.manager.Checkpoints.restore", "SIGTERM"),
    ],
)
def test_before_the_first_step_a_signal_ends_the_run_at_once(
    text, straight, tmp_path, place, name
):
    workdir = shutil.copytree(straight, tmp_path / "straight")
    fault = {"KILL_AT": f"{place}:{name}"}
    result = run("tests.faults.faulty_train", *arguments(text, workdir), **fault)
    expected = (75, NO_STEP, "") if name == "SIGTERM" else (130, "", "stopped\n")
    stdout = re.sub("^cache: .*\n", "", result.stdout)
    assert (result.returncode, stdout, result.stderr) == expected
    assert integrity.steps(str(workdir)) == [LAST]


def test_while_a_corpus_is_prepared_a_signal_ends_the_run_at_once(tmp_path):
    write_text(tmp_path / "documents.txt", num_documents=20_000)  # takes seconds
    run_arguments = arguments(tmp_path, tmp_path / "run", **{"phases[0].num_steps": 3})
    process = start("bert_jax.train", *run_arguments)
    while not (tmp_path / "corpus").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=120)
    first_line, stdout = stdout.split("\n", 1)
    assert first_line.startswith("cache:")
    stdout = re.sub("^tokenizer: .*\n", "", stdout)  # it may have been begun
    assert (process.returncode, stdout, stderr) == (75, NO_STEP, "")
    assert not (tmp_path / "run").exists()
    assert "Trained to step 3" in run_well("bert_jax.train", *run_arguments)


def test_a_preemption_notice_saves_and_stops(text, tmp_path, server):
    """Before it, a second run in the workdir is refused."""
    ANSWERS.clear()
    ANSWERS["maintenance-event"] = (200, b"TERMINATE_ON_HOST_MAINTENANCE")  # known
    many = {"phases[0].num_steps": 100_000, "checkpoint.every_steps": 100_000}
    command = "bert_jax.train", *arguments(text, tmp_path, **many)
    process = start(*command, GCE_METADATA_HOST=server)
    wait_for_lines(process, tmp_path)
    error = error_of(*command)
    assert f"being written by process {process.pid} on" in error
    ANSWERS["preempted"] = (200, b"TRUE")
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 75, stdout + stderr
    assert "notice from this machine: preempted; saving" in stderr


def test_saves_by_the_clock_and_replayed_steps_change_no_bit_and_no_line(
    text, straight, tmp_path
):
    changes = {"checkpoint.every_minutes": 0.005, "checkpoint.keep": 3}
    changes["guard.replay_every_steps"] = 100
    run_well("bert_jax.train", *arguments(text, tmp_path, **changes))
    saved = integrity.steps(str(tmp_path))
    assert len(saved) == 3 and saved[-1] == LAST
    assert_same_bits(tmp_path, straight, LAST)
    assert exact_lines(tmp_path) == exact_lines(straight)
    assert lines(tmp_path)[-1]["seconds_saving"] > 0


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("20", "for 4 s after step 20"),
        (
            "bert_jax.distributed.devices.open_devices",
            "for 8 s after the start of opening devices",
        ),
    ],
)
def test_a_hung_run_exits_with_76_and_its_stacks(text, tmp_path, place, message):
    given = [*small_run(text), f"--workdir={tmp_path}"]
    result = run("tests.faults.faulty_train", *given, HANG_AT=place)
    assert result.returncode == 76, result.stdout + result.stderr
    assert f"no progress {message}" in result.stderr
    assert "wait_forever" in result.stderr
