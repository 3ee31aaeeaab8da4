"""The loops of restart.sh and slurm.sbatch: exit codes, backoff and signals.

For the job, srun and scontrol on PATH are scripts: the first runs the training, the
second appends its arguments to a file.
"""

import itertools
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from tests.commands import ROOT, capture

# A training that takes one line of `plan` per start: EXIT_CODE [CHECKPOINT].
TRAIN = r"""#!/usr/bin/env bash
workdir=${@: -1}
workdir=${workdir#--workdir=}
echo "$@" >>"$PLANS/starts"
read -r code step < <(sed -n "$(wc -l <"$PLANS/starts")p" "$PLANS/plan")
[[ -z $step ]] || mkdir -p "$workdir/checkpoints/$step"
exit "${code:-0}"
"""
# A training that saves and exits with 75 on SIGTERM and SIGINT, after a moment.
STEADY = r"""#!/usr/bin/env bash
trap 'sleep 0.3; echo "saved on TERM" >>"$PLANS/log"; exit 75' TERM
trap 'echo "saved on INT" >>"$PLANS/log"; exit 75' INT
echo started >>"$PLANS/starts"
while :; do sleep 0.05; done
"""
SCONTROL = '#!/usr/bin/env bash\necho "$@" >>"$PLANS/requeued"\n'
SBATCH = ROOT / "launch/slurm.sbatch"


@pytest.fixture(autouse=True)
def default_sighup():
    """Gives child processes the default action of SIGHUP, also under nohup."""
    previous = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.fixture(autouse=True)
def plans(tmp_path, monkeypatch) -> pathlib.Path:
    """The directory of the plan and of what was started; train makes the workdir."""
    plans = tmp_path / "plans"
    plans.mkdir()
    for name, program in (("srun", TRAIN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PLANS", str(plans))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return plans


def start(
    plans, program: str, delay: str = "0.01", workdir: str = "work dir"
) -> subprocess.Popen:
    train = plans.parent / "train"
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


def restarted(plans, *options: str) -> tuple[int, str]:
    """Returns the exit code of restart.sh and its log."""
    process = start(plans, TRAIN, *options)
    log = process.communicate(timeout=60)[1]
    return process.returncode, log


def requeued(plans) -> tuple[int, str]:
    """Runs the job as Slurm does, again after each requeue; returns its end."""
    file = plans / "requeued"
    (plans.parent / "work").mkdir()
    (plans.parent / "work/requeues").write_text("90 3\n")  # of an earlier job
    for restarts in itertools.count():
        before = file.read_text() if file.exists() else ""
        workdir = f"--workdir={plans.parent}/work"
        env = os.environ | {"SLURM_RESTART_COUNT": str(restarts)}
        result = capture("bash", SBATCH, "--config=tiny", workdir, env=env)
        if not file.exists() or (after := file.read_text()) == before:
            assert "-m bert_jax.train --config=tiny" in (plans / "starts").read_text()
            return result.returncode, result.stderr
        assert after == before + "requeue 7\n" and result.returncode == 0


def num_starts(plans) -> int:
    return len((plans / "starts").read_text().splitlines())


LOOPS = pytest.mark.parametrize("loop", [restarted, requeued])


@LOOPS
@pytest.mark.parametrize(
    ("code", "starts", "plan"),
    [
        *((code, 1, [str(code), "0"]) for code in (0, 1, 2, 77, 78, 137)),
        (0, 3, ["75 10", "76 20", "0 30"]),
        (0, 2, ["76", "0"]),  # failed before its workdir was made
        # The first wrote a checkpoint, then three restarts.
        (1, 5, ["75 9", "76", "76", "76", "76", "0"]),
        # A newer checkpoint resets the count.
        (0, 8, ["76 9", "76", "76", "76 10", "76", "76", "76 100", "0"]),
        # An unfinished or older one is no progress.
        (1, 5, ["76 9", "76 20.orbax-checkpoint-tmp-3", "76 8", "76 7", "76 6", "0"]),
    ],
)
def test_codes_75_and_76_restart_while_there_is_progress(
    plans, loop, code, starts, plan
):
    (plans / "plan").write_text("\n".join(plan) + "\n")
    found, log = loop(plans)
    assert (found, num_starts(plans)) == (code, starts), log
    if starts == 5:
        assert "no checkpoint newer than step 9 after 3 re" in log


# Lists the directory of a bucket's name, in which TRAIN writes.
GCLOUD = """#!/usr/bin/env bash
[[ "$1 $2 $3" == "storage ls gs://bucket/run/checkpoints/*/commit_success.txt" ]] &&
  cd gs:/bucket/run/checkpoints && printf 'gs://b/%s/commit_success.txt\\n' *
"""


@pytest.mark.parametrize("workdir", ["gs://bucket/run", "~/run"])
def test_progress_is_seen_in_a_bucket_and_a_home(plans, monkeypatch, workdir):
    monkeypatch.setenv("HOME", str(plans.parent))
    (plans.parent / "gcloud").write_text(GCLOUD)
    (plans.parent / "gcloud").chmod(0o755)
    program = TRAIN.replace("mkdir -p", "workdir=${workdir/#\\~/$HOME}; mkdir -p")
    monkeypatch.setattr("tests.launch.test_restart.TRAIN", program)
    (plans / "plan").write_text("".join(f"76 {n}\n" for n in range(9, 14)) + "0\n")
    assert restarted(plans, "0.01", workdir)[0] == 0
    assert num_starts(plans) == 6


def test_waits_double_and_are_shortened_by_up_to_half(plans):
    (plans / "plan").write_text("76\n" * 4)
    code, log = restarted(plans, "0.1")
    assert code == 1
    waits = [float(line.split(" in ")[1].split()[0]) for line in log.splitlines()[:3]]
    for wait, longest in zip(waits, (0.1, 0.2, 0.4), strict=True):
        assert longest / 2 <= wait <= longest


def wait_for_start(plans: pathlib.Path) -> None:
    while not (plans / "starts").exists():
        time.sleep(0.02)
    time.sleep(0.2)


@pytest.mark.parametrize(
    "name, forwarded", [("TERM", "TERM"), ("INT", "INT"), ("HUP", "TERM")]
)
def test_a_signal_is_forwarded_and_not_followed_by_a_restart(plans, name, forwarded):
    process = start(plans, STEADY)
    wait_for_start(plans)
    process.send_signal(getattr(signal, f"SIG{name}"))
    log = process.communicate(timeout=60)[1]
    assert process.returncode == 75
    assert (plans / "log").read_text() == f"saved on {forwarded}\n"
    assert num_starts(plans) == 1
    assert f"not restarted after SIG{forwarded}" in log


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_the_wait_ends_the_loop(plans, sent):
    (plans / "plan").write_text("76\n0\n")
    process = start(plans, TRAIN, delay="60")
    assert "restarting in" in process.stderr.readline()
    process.send_signal(sent)
    process.communicate(timeout=20)
    assert process.returncode == 76 and num_starts(plans) == 1


@pytest.mark.parametrize("workdir_flag", [[], ["--workdir=x"]])
def test_a_mistake_is_one_line_and_exit_code_2(workdir_flag):
    named = "BERT_JAX_FIRST_DELAY='soon'" if workdir_flag else "--workdir=DIR"
    env = os.environ | {"BERT_JAX_FIRST_DELAY": "soon"}
    result = capture(ROOT / "launch/restart.sh", "true", *workdir_flag, env=env)
    assert result.returncode == 2
    assert named in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("workdir", [[], ["--workdir=gs://bucket/run"]])
def test_slurm_needs_a_directory(workdir):
    result = capture("bash", SBATCH, "--dry_run", *workdir)
    assert result.returncode == 2 and "; give a directory that all" in result.stderr


def test_slurm_sends_sigterm_to_the_tasks_before_the_time_limit():
    options = re.findall("^#SBATCH (.*)$", SBATCH.read_text(), re.MULTILINE)
    assert {"--signal=TERM@120", "--requeue", "--open-mode=append"} <= {*options}
