"""The restart loop: exit codes, backoff, crash loops and signals."""

import os
import pathlib
import signal
import subprocess
import time

import pytest

from tests.commands import ROOT

# A training that takes one line of `plan` per start: EXIT_CODE [CHECKPOINT].
TRAIN = r"""#!/usr/bin/env bash
workdir=${1#--workdir=}
echo started >>"$workdir/starts"
read -r code step < <(sed -n "$(wc -l <"$workdir/starts")p" "$workdir/plan")
[[ -z $step ]] || mkdir -p "$workdir/checkpoints/$step"
exit "${code:-0}"
"""

# A training that saves and exits with 75 on SIGTERM and SIGINT, after a moment.
STEADY = r"""#!/usr/bin/env bash
workdir=${1#--workdir=}
trap 'sleep 0.3; echo "saved on TERM" >>"$workdir/log"; exit 75' TERM
trap 'echo "saved on INT" >>"$workdir/log"; exit 75' INT
echo started >>"$workdir/starts"
while :; do sleep 0.05; done
"""


@pytest.fixture(autouse=True)
def default_sighup():
    """Gives child processes the default action of SIGHUP, also under nohup."""
    previous = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.fixture
def workdir(tmp_path) -> pathlib.Path:
    directory = tmp_path / "work dir"
    directory.mkdir()
    return directory


def start(workdir, program: str, delay: str = "0.01") -> subprocess.Popen:
    train = workdir.parent / "train"
    train.write_text(program)
    train.chmod(0o755)
    return subprocess.Popen(
        [ROOT / "launch/restart.sh", train, f"--workdir={workdir}"],
        env=os.environ | {"BERT_JAX_FIRST_DELAY": delay},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_plan(workdir, *plan: str, code: int, delay: str = "0.01") -> tuple[int, str]:
    """Returns the number of starts and the log; checks the exit code."""
    (workdir / "plan").write_text("\n".join(plan) + "\n")
    process = start(workdir, TRAIN, delay)
    log = process.communicate(timeout=60)[1]
    assert process.returncode == code, log
    return len((workdir / "starts").read_text().split()), log


def wait_for_start(workdir: pathlib.Path) -> None:
    while not (workdir / "starts").exists():
        time.sleep(0.02)
    time.sleep(0.2)


@pytest.mark.parametrize("code", [0, 1, 2, 77, 78, 137])
def test_other_codes_end_the_loop(workdir, code):
    starts, log = run_plan(workdir, str(code), "0", code=code)
    assert starts == 1 and log == f"restart: exit code {code}\n"


def test_codes_75_and_76_restart(workdir):
    starts, log = run_plan(workdir, "75 10", "76 20", "0 30", code=0)
    assert starts == 3
    assert "newest checkpoint: step 10" in log and "newest checkpoint: step 20" in log


def test_three_restarts_without_a_newer_checkpoint_exit_with_1(workdir):
    starts, log = run_plan(workdir, "75 10", "76", "76", "76", "76", "0", code=1)
    assert starts == 5  # the first wrote a checkpoint, then three restarts
    assert "exit code 76; no checkpoint newer than step 10 after 3 restarts" in log


@pytest.mark.parametrize("steps", [(10, 20, 30), (9, 10, 100)])
def test_a_newer_checkpoint_resets_the_count(workdir, steps):
    plan = [line for step in steps for line in (f"76 {step}", "76", "76")] + ["0"]
    assert run_plan(workdir, *plan, code=0)[0] == len(plan)


def test_an_unfinished_or_older_checkpoint_is_no_progress(workdir):
    plan = ["76 10", "76 20.orbax-checkpoint-tmp-3", "76 9", "76 8", "76 7", "0"]
    assert run_plan(workdir, *plan, code=1)[0] == 5


def test_waits_double_and_are_shortened_by_up_to_half(workdir):
    _, log = run_plan(workdir, *["76"] * 4, code=1, delay="0.1")
    waits = [float(line.split(" in ")[1].split()[0]) for line in log.splitlines()[:3]]
    for wait, longest in zip(waits, (0.1, 0.2, 0.4), strict=True):
        assert longest / 2 <= wait <= longest


@pytest.mark.parametrize(
    "name, forwarded", [("TERM", "TERM"), ("INT", "INT"), ("HUP", "TERM")]
)
def test_a_signal_is_forwarded_and_not_followed_by_a_restart(workdir, name, forwarded):
    process = start(workdir, STEADY)
    wait_for_start(workdir)
    process.send_signal(getattr(signal, f"SIG{name}"))
    log = process.communicate(timeout=60)[1]
    assert process.returncode == 75
    assert (workdir / "log").read_text() == f"saved on {forwarded}\n"
    assert (workdir / "starts").read_text() == "started\n"
    assert f"not restarted after SIG{forwarded}" in log


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_the_wait_ends_the_loop(workdir, sent):
    (workdir / "plan").write_text("76\n0\n")
    process = start(workdir, TRAIN, delay="60")
    wait_for_start(workdir)
    process.send_signal(sent)
    process.communicate(timeout=20)
    assert process.returncode == 76
    assert (workdir / "starts").read_text() == "started\n"


@pytest.mark.parametrize("workdir_flag", [[], ["--workdir=x"]])
def test_a_mistake_is_one_line_and_exit_code_2(workdir_flag):
    named = "BERT_JAX_FIRST_DELAY='soon'" if workdir_flag else "--workdir=DIR"
    result = subprocess.run(
        [ROOT / "launch/restart.sh", "true", *workdir_flag],
        env=os.environ | {"BERT_JAX_FIRST_DELAY": "soon"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert named in result.stderr and result.stderr.count("\n") == 1
