"""The scripts of launch/ and the commands of its README: the output of --dry_run."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT, capture

README = (ROOT / "launch/README.md").read_text()


BESIDE_PYTHON = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
SHELLCHECK = shutil.which("shellcheck", path=BESIDE_PYTHON)


@pytest.mark.skipif(not SHELLCHECK, reason="shellcheck is not installed")
def test_shellcheck():
    assert SHELLCHECK
    scripts = sorted((ROOT / "launch").glob("*.s[hb]*"))
    result = capture(SHELLCHECK, *scripts)
    assert len(scripts) > 3 and result.returncode == 0, result.stdout


def commands(start: str) -> list[list[str]]:
    """Returns the words of README's commands that begin with `start`."""
    lines = re.findall(r"^    (\w.*)$", README.replace("\\\n", " "), re.MULTILINE)
    (place,) = [line for line in lines if line.startswith("place=")]
    lines = [line.replace("$place", place[7:-1]) for line in lines]
    return [shlex.split(line) for line in lines if line.startswith(start)]


def dry_run(words: list[str]) -> str:
    """Runs a script of launch/ with --dry_run before the arguments of the training."""
    at = 1 if "restart" in words[0] or "sbatch" in words[0] else 2
    env = os.environ | {"PATH": "/usr/bin:/bin"}
    result = capture(ROOT / words[0], *words[1:at], "--dry_run", *words[at:], env=env)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    "words", commands("launch/queued_resource.sh"), ids=lambda words: words[1]
)
def test_the_commands_of_queued_resource_print_gcloud_commands(words):
    printed = [shlex.split(line) for line in dry_run(words).splitlines()]
    gcloud = [line for line in printed if line[0] == "gcloud"]
    assert gcloud
    for line in gcloud:
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
    result = capture(ROOT / "launch/queued_resource.sh", *arguments.split())
    assert result.returncode == 2 and result.stderr.startswith("error: ")
    assert named in result.stderr and result.stderr.count("\n") == 1


def test_restart_and_sbatch_print_the_command_of_training():
    (restart,) = commands("launch/restart.sh")
    assert dry_run(restart).split() == restart[1:]
    (sbatch,) = commands("sbatch")
    script = sbatch[sbatch.index("launch/slurm.sbatch") :]
    printed = dry_run(script).split()
    assert printed[0] == "srun" and printed[-len(script) + 1 :] == script[1:]
