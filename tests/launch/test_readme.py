"""The commands of launch/README.md: known flags, and the output of --dry_run."""

import os
import re
import shlex
import subprocess

import pytest

from bert_jax import errors
from tests.commands import ROOT, run

README = (ROOT / "launch/README.md").read_text()

# Flags of gcloud 528, SkyPilot 0.14.1, xpk 1.16.0, Slurm 26.05; "=": with a value.
FLAGS = {
    "gcloud compute tpus queued-resources create": (
        "accelerator-type= internal-ips node-id= project= runtime-version= spot zone="
    ),
    "gcloud compute tpus queued-resources delete": "force project= quiet zone=",
    "gcloud compute tpus queued-resources describe": "format= project= zone=",
    "gcloud compute tpus queued-resources scp": (
        "node= project= tunnel-through-iap worker= zone="
    ),
    "gcloud compute tpus queued-resources ssh": (
        "command= node= project= tunnel-through-iap worker= zone="
    ),
    "gcloud storage buckets create": (
        "enable-hierarchical-namespace location= uniform-bucket-level-access"
    ),
    "gcloud storage rsync": "exclude= recursive",
    "sbatch": (
        "cpus-per-task= gpus-per-node= nodes= ntasks-per-node= output= signal= time="
    ),
    "sky jobs launch": "env= gpus= infra= name= no-use-spot",
    "xpk storage attach": (
        "auto-mount= bucket= cluster= mount-options= mount-point= project= readonly= "
        "size= type= zone="
    ),
    "xpk workload create": (
        "cluster= command= docker-image= max-restarts= num-slices= project= "
        "restart-on-exit-codes= storage= termination-grace-period-seconds= "
        "tpu-type= workload= zone="
    ),
}


def commands(start: str) -> list[list[str]]:
    """Returns the words of README's commands that begin with `start`."""
    lines = re.findall(r"^    (\w.*)$", README.replace("\\\n", " "), re.MULTILINE)
    (place,) = [line for line in lines if line.startswith("place=")]
    lines = [line.replace("$place", place[7:-1]) for line in lines]
    return [shlex.split(line) for line in lines if line.startswith(start)]


def check_flags(words: list[str]) -> None:
    line = " ".join(words)
    (command,) = [name for name in FLAGS if line.startswith(name)]
    for word in words[len(command.split()) :]:
        if word.startswith("launch/slurm"):
            return  # its own arguments follow
        if word.startswith("--"):
            name, equals, _ = word[2:].partition("=")
            assert name + equals in FLAGS[command].split(), f"{command}: {word}"


def dry_run(words: list[str]) -> str:
    """Runs a script of launch/ with --dry_run before the arguments of the training."""
    at = 1 if "restart" in words[0] or "sbatch" in words[0] else 2
    result = subprocess.run(
        [ROOT / words[0], *words[1:at], "--dry_run", *words[at:]],
        env=os.environ | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


TOOLS = ("gcloud", "sbatch", "sky jobs launch", "xpk")


@pytest.mark.parametrize("tool", TOOLS)
def test_flags_of_other_tools_exist(tool):
    assert commands(tool)
    for words in commands(tool):
        check_flags(words)


@pytest.mark.parametrize(
    "words", commands("launch/queued_resource.sh"), ids=lambda words: words[1]
)
def test_the_commands_of_queued_resource_print_gcloud_commands(words):
    printed = [shlex.split(line) for line in dry_run(words).splitlines()]
    gcloud = [line for line in printed if line[0] == "gcloud"]
    assert gcloud
    for line in gcloud:
        check_flags(line)
        assert "bert-base" in " ".join(line) and "--zone=us-central1-a" in line
        for word in line:  # what the workers run
            if word.startswith("--command="):
                script = word.removeprefix("--command=")
                subprocess.run(["bash", "-nc", script], check=True)


def test_arguments_reach_the_workers_as_they_were_given():
    words = ["--workdir=/mnt/bert_jax/r", "--config.data.sources=('text:/a b/*.txt',)"]
    place = ["--name=n", "--project=p", "--zone=z"]
    train = ["launch/queued_resource.sh", "train", *place, "--", *words]
    (line,) = map(shlex.split, dry_run(train).splitlines())
    (script,) = [w.removeprefix("--command=") for w in line if w.startswith("--comm")]
    assert shlex.split(script)[-2:] == words


@pytest.mark.parametrize(
    "arguments, named",
    [
        ("create --name=n --project=p --zone=z", "--type"),
        ("install --name=n --project=p --zone=z", "--bucket"),
        ("train --name=n --project=p --zone=z -- --config=x", "--workdir"),
        ("create --nam=n", "--nam=n"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, named):
    script = ROOT / "launch/queued_resource.sh"
    result = subprocess.run(
        [script, *arguments.split()], capture_output=True, text=True
    )
    assert result.returncode == 2 and result.stderr.startswith("error: ")
    assert named in result.stderr and result.stderr.count("\n") == 1


def test_restart_and_sbatch_print_the_command_of_training():
    (restart,) = commands("launch/restart.sh")
    assert dry_run(restart).split() == restart[1:]
    (sbatch,) = commands("sbatch")
    script = sbatch[sbatch.index("launch/slurm.sbatch") :]
    printed = dry_run(script).split()
    assert printed[0] == "srun" and printed[-len(script) + 1 :] == script[1:]


@pytest.mark.slow
def test_the_preflight_command_succeeds():
    (words,) = commands("python -m bert_jax.preflight")
    result = run(words[2], *words[3:])
    assert result.returncode == 0, result.stderr


def test_the_table_has_every_exit_code():
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    table = set(map(int, re.findall(r"^\| (\d+) ", README, re.MULTILINE)))
    assert table == codes - {errors.EXIT_BROKEN_PIPE} | {0, 1}


@pytest.mark.parametrize("flag", ["--wrong=1", "--spot=1"])
def test_an_unknown_flag_fails_the_check(flag):
    with pytest.raises(AssertionError):
        check_flags(["gcloud", "compute", "tpus", "queued-resources", "create", flag])
