"""A run on a Slurm cluster, against fakes of its commands.

The batch job runs for real, with an srun that runs its command on this machine.
"""

import shlex
import signal
import time

import pytest

from tests.launch.fakes import FAKE, Answer, words_in_order

SCRIPT = "slurm.sh"


@pytest.fixture
def slurm(cloud, tmp_path):
    """A cluster with an empty queue, where all goes well."""
    (tmp_path / "shared").mkdir()
    cloud.workdir = tmp_path / "shared" / "runs" / "bert-base"
    cloud.flags = [
        "--name=bert-base",
        "--nodes=2",
        "--gpus_per_node=4",
        "--config=configs/base.py",
        f"--workdir={cloud.workdir}",
        f"--corpus_dir={tmp_path}/shared/corpora/base",
    ]
    cloud.add_program("python3", FAKE)  # of install: no environment is made
    (cloud.clone / ".venv" / "bin").mkdir(parents=True)
    python = cloud.clone / ".venv" / "bin" / "python"
    python.symlink_to(cloud.fakes / "bin" / "python3")
    cloud.reply("sbatch .*parsable", "41", "42", "43", "44", "45", "46")
    cloud.reply("sacct", "COMPLETED|0:0")
    return cloud


def checkpoint(slurm, step):
    (slurm.workdir / "checkpoints" / str(step)).mkdir(parents=True)


def test_a_dry_run_prints_what_the_real_one_does_and_does_nothing(slurm):
    slurm.reply("sbatch .*parsable", "1")  # the number that a dry run assumes
    args = ["run", *slurm.flags, "--partition=gpu", "--account=me"]
    end = ["--", "--config.data.sources=('text:/a b/*.txt',)"]
    dry = slurm.run(SCRIPT, *args, "--dry_run", *end)
    assert slurm.calls() == [] and not slurm.workdir.exists()
    slurm.run(SCRIPT, *args, *end)
    done = [words for words in slurm.calls() if words[0] not in ("python3", "python")]
    assert slurm.printed(dry.stdout) == done
    assert len(done) == 4


def test_there_is_a_task_for_each_gpu_and_every_task_sees_all_of_a_node(slurm):
    slurm.run(SCRIPT, "train", *slurm.flags, "--time=2-00:00:00")
    (words,) = slurm.calls("sbatch")
    assert {
        "--nodes=2",
        "--ntasks-per-node=4",
        "--gpus-per-node=4",
        "--time=2-00:00:00",
        f"--chdir={slurm.clone}",
    } <= set(words)
    assert not any("gpus-per-task" in word for word in words)


def test_arguments_reach_both_jobs_intact(slurm):
    source = "--config.data.sources=('text:/a b/*.txt',)"
    slurm.run(SCRIPT, "train", *slurm.flags, "--", source)
    assert slurm.calls("sbatch")[0][-1] == source
    slurm.run(SCRIPT, "prepare", *slurm.flags, "--prepare_partition=cpu", "--", source)
    words = slurm.calls("sbatch .*--wait")[0]
    assert {"--cpus-per-task=16", "--partition=cpu"} <= set(words)
    assert shlex.split(words[-1].removeprefix("--wrap="))[-1] == source


def test_a_job_in_the_queue_is_not_submitted_twice(slurm):
    slurm.reply("squeue", "42 RUNNING")
    assert "job 42\n" in slurm.run(SCRIPT, "train", *slurm.flags).stderr
    assert not slurm.calls("sbatch")


@pytest.mark.parametrize(
    "answers, code",
    [
        (["PENDING|0:0", "RUNNING|0:0", "COMPLETED|0:0"], 0),
        (["", "RUNNING|0:0", "REQUEUED|0:0", "FAILED|77:0"], 77),
        (["FAILED|2:0"], 2),
        (["CANCELLED by 1000|0:15"], 1),
        (["NODE_FAIL|0:0"], 69),
        (["PREEMPTED|0:0"], 69),
        (["TIMEOUT|0:0"], 69),
    ],
)
def test_wait_ends_with_the_code_of_training(slurm, answers, code):
    slurm.run(SCRIPT, "train", *slurm.flags)
    slurm.reply("sacct", *answers)
    slurm.run(SCRIPT, "wait", *slurm.flags, code=code)
    assert "--jobs=41" in slurm.calls("sacct")[0]
    assert len(slurm.calls("sacct")) == len(answers)


def test_the_reason_of_a_failure_is_shown_before_its_code(slurm):
    slurm.run(SCRIPT, "train", *slurm.flags)
    (slurm.workdir / "slurm.txt").write_text("ConfigError: no field 'lr'\n")
    slurm.reply("sacct", "FAILED|2:0")
    said = slurm.run(SCRIPT, "wait", *slurm.flags, code=2).stderr
    assert said.startswith("ConfigError: no field 'lr'\nlaunch: ")


def test_wait_without_a_job_or_without_accounting(slurm):
    assert "no job" in slurm.run(SCRIPT, "wait", *slurm.flags, code=2).stderr
    slurm.run(SCRIPT, "train", *slurm.flags)
    slurm.reply("sacct", Answer(code=1))
    slurm.run(SCRIPT, "wait", *slurm.flags, code=1, BERT_JAX_MISSES="3")
    assert len(slurm.calls("sacct")) == 3


def test_lost_nodes_are_followed_by_another_job(slurm):
    slurm.reply("sacct", "NODE_FAIL|0:0", "COMPLETED|0:0")
    slurm.run(SCRIPT, "run", *slurm.flags)
    assert len(slurm.calls("sbatch .*parsable")) == 2
    assert len(slurm.calls("sbatch .*--wait")) == 1


def test_losses_without_a_newer_checkpoint_end_the_run(slurm):
    checkpoint(slurm, 100)
    slurm.reply("sacct", "NODE_FAIL|0:0")
    result = slurm.run(SCRIPT, "run", *slurm.flags, code=69)
    assert "no checkpoint newer than 100" in result.stderr
    assert len(slurm.calls("sbatch .*parsable")) == 4


@pytest.mark.parametrize("failing", ["python3", "sbatch .*--wait", "sbatch .*parsable"])
def test_a_failed_step_ends_the_run(slurm, failing):
    slurm.reply(failing, Answer(err="broken", code=1))
    slurm.run(SCRIPT, "run", *slurm.flags, code=1)
    assert not slurm.calls("sacct")


def test_install_makes_an_environment_for_cuda(slurm):
    slurm.run(SCRIPT, "install", *slurm.flags)
    assert words_in_order(
        slurm.calls(), "^python3 -m venv", r"^python -m pip .*\[cuda\]"
    )


def test_status_logs_stop_delete(slurm):
    checkpoint(slurm, 99)
    assert "checkpoint: 99" in slurm.run(SCRIPT, "status", *slurm.flags).stdout
    (slurm.workdir / "slurm.txt").write_text("last line\n")
    assert slurm.run(SCRIPT, "logs", *slurm.flags).stdout == "last line\n"
    slurm.run(SCRIPT, "stop", *slurm.flags)
    assert not slurm.calls("scancel")
    slurm.reply("squeue", "42 RUNNING")
    slurm.run(SCRIPT, "stop", *slurm.flags)
    assert slurm.calls("scancel") == [["scancel", "--batch", "--signal=INT", "42"]]
    slurm.run(SCRIPT, "delete", *slurm.flags)
    assert slurm.calls("scancel")[1] == ["scancel", "42"]
    slurm.reply("squeue", "43 PENDING")  # requeued at its time limit
    slurm.run(SCRIPT, "stop", *slurm.flags)
    assert slurm.calls("scancel")[2] == ["scancel", "43"]


@pytest.mark.parametrize(
    "flag",
    [
        "--name=Bert",
        "--nodes=0",
        "--gpus_per_node=all",
        "--time=1d",
        "--workdir=runs/x",
        "--workdir=gs://b/x",
        "--corpus_dir=/a/../b",
        "--partition=a,b",
        "--modules=a;b",
        "--follow=x",
    ],
)
def test_a_mistake_is_one_line_and_code_2(slurm, flag):
    result = slurm.run(SCRIPT, "run", *slurm.flags, flag, code=2)
    assert result.stderr.count("\n") == 1
    assert slurm.calls() == []


# ---- The batch job itself. An srun that drops its own flags and runs the command, and,
# as the real one, kills it on SIGTERM; a scancel that signals the command.
SRUN = r"""#!/usr/bin/env bash
echo "$*" >>"$FAKES/srun"
while [[ $1 == --* ]]; do shift; done
"$@" &
echo $! >"$FAKES/task"
trap 'kill -KILL $!' TERM
wait $!
"""
SCANCEL = r"""#!/usr/bin/env bash
echo "$*" >>"$FAKES/scancel"
kill -s TERM "$(<"$FAKES/task")"
"""
TRAIN = r"""#!/usr/bin/env bash
workdir=${3#--workdir=}
touch "$workdir/starts"
start=$(($(wc -l <"$workdir/starts") + 1))
read -r code step end < <(sed -n "${start}p" "$workdir/plan")
trap 'mkdir -p "$workdir/checkpoints/$step"; exit "${end:-75}"' TERM
echo started >>"$workdir/starts" # no signal comes before this line
[[ $code != forever ]] || while :; do sleep 0.05; done
exit "$code"
"""


@pytest.fixture
def job(slurm):
    slurm.add_program("srun", SRUN)
    slurm.add_program("scancel", SCANCEL)
    slurm.add_program("train", TRAIN)
    slurm.workdir.mkdir(parents=True)

    def start(*plan, **env):
        (slurm.workdir / "plan").write_text("\n".join(plan) + "\n")
        for old in (slurm.workdir / "starts", slurm.fakes / "task"):
            old.unlink(missing_ok=True)
        return slurm.start(
            "slurm.sbatch",
            "--config=configs/base.py",
            BERT_JAX_PYTHON=str(slurm.fakes / "bin" / "train"),
            BERT_JAX_WORKDIR=str(slurm.workdir),
            SLURM_JOB_ID="7",
            SLURM_CPUS_PER_TASK="8",
            **env,
        )

    slurm.job = start
    return slurm


def interrupted(job, sent, *plan, **env):
    """Returns the exit code of a job that gets a signal once training runs."""
    process = job.job(*plan, **env)
    for path in (job.workdir / "starts", job.fakes / "task"):
        while not (path.exists() and path.read_text()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
    time.sleep(0.1)
    process.send_signal(sent)
    process.communicate(timeout=60)
    return process.returncode


def test_the_job_restarts_training_by_its_exit_codes(job):
    process = job.job("76", "76", "0")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert (job.workdir / "starts").read_text().split() == ["started"] * 3
    told = (job.fakes / "srun").read_text()
    assert "--kill-on-bad-exit=0" in told and "--cpus-per-task=8" in told
    assert f"--workdir={job.workdir} --config=configs/base.py" in told


def test_the_job_ends_with_a_code_that_no_restart_helps(job):
    process = job.job("78", "0")
    process.communicate(timeout=60)
    assert process.returncode == 78
    assert not job.calls("scontrol")


def test_before_the_time_limit_training_saves_and_the_job_is_requeued(job):
    assert interrupted(job, signal.SIGTERM, "forever 10") == 75
    assert (job.fakes / "scancel").read_text() == "--signal=TERM 7\n"
    assert (job.workdir / "checkpoints" / "10").exists()
    assert (job.workdir / "starts").read_text() == "started\n"
    assert job.calls("scontrol") == [["scontrol", "requeue", "7"]]


def test_a_time_limit_in_the_pause_after_a_lost_peer_is_followed_by_a_requeue(job):
    pause = {"BERT_JAX_FIRST_DELAY": "60", "BERT_JAX_MAX_DELAY": "60"}
    assert interrupted(job, signal.SIGTERM, "76", "0", **pause) == 76
    assert (job.workdir / "starts").read_text() == "started\n"
    assert job.calls("scontrol") == [["scontrol", "requeue", "7"]]


def test_a_time_limit_after_a_code_that_no_restart_helps_is_the_end(job):
    assert interrupted(job, signal.SIGTERM, "forever 10 78") == 78
    assert not job.calls("scontrol")


def test_a_time_limit_that_brings_no_checkpoint_is_the_last(job):
    assert interrupted(job, signal.SIGTERM, "forever 10") == 75
    assert interrupted(job, signal.SIGTERM, "forever 10") == 75
    assert len(job.calls("scontrol")) == 1
    assert interrupted(job, signal.SIGTERM, "forever 20") == 75
    assert len(job.calls("scontrol")) == 2


def test_a_stopped_job_saves_and_is_not_requeued(job):
    assert interrupted(job, signal.SIGINT, "forever 10") == 75
    assert (job.workdir / "checkpoints" / "10").exists()
    assert not job.calls("scontrol")
