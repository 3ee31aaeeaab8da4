"""Every script: shellcheck, run or sourced, and no secret leaves the environment."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT
from tests.launch import published, test_gke, test_instance_group, test_queued_resource
from tests.launch import test_skypilot as sky

SCRIPTS = sorted(
    path for path in (ROOT / "launch").iterdir() if path.suffix in (".sh", ".sbatch")
)
CANARY = "canary-3141592653"
# Requirements put it beside the Python, which need not be on PATH.
BESIDE_PYTHON = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
SHELLCHECK = shutil.which("shellcheck", path=BESIDE_PYTHON)


def test_shellcheck():
    if not SHELLCHECK:
        pytest.skip("shellcheck is not installed")
    result = subprocess.run(
        [SHELLCHECK, "-x", *SCRIPTS], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_is_run_is_executable_and_strict(path):
    text = path.read_text()
    sourced = text.startswith("# shellcheck shell=bash")
    assert os.access(path, os.X_OK) != sourced
    if not sourced:
        assert text.startswith("#!/usr/bin/env bash\n# ")
        assert "\nset -euo pipefail\n" in text
    assert all(len(line) <= 92 for line in text.splitlines())


def test_shellcheck_can_fail(tmp_path):
    if not SHELLCHECK:
        pytest.skip("shellcheck is not installed")
    bad = tmp_path / "bad.sh"
    bad.write_text("#!/usr/bin/env bash\nrm -rf $1\n")
    assert subprocess.run([SHELLCHECK, bad], capture_output=True).returncode == 1


@pytest.mark.parametrize(
    "script, flags",
    [
        (test_queued_resource.SCRIPT, test_queued_resource.FLAGS),
        (test_instance_group.SCRIPT, test_instance_group.FLAGS),
        (test_gke.SCRIPT, test_gke.FLAGS),
        (sky.SCRIPT, sky.FLAGS),
    ],
)
@pytest.mark.parametrize("dry_run", [[], ["--dry_run"]])
def test_no_secret_of_the_environment_leaves_it(cloud, script, flags, dry_run):
    secrets = ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"]
    cloud.reply("rev-parse", "0123456789ab")
    cloud.reply("queued-resources describe", "ACTIVE")
    cloud.reply("tpu-vm describe", "READY")
    cloud.reply("instanceStatus", "RUNNING\nRUNNING")
    cloud.reply(r"list-instances.*\(name\)", "a\nb")
    cloud.reply("on_host.sh state", "ended 0")
    cloud.reply("get job ", "Complete")
    cloud.reply("get jobset", "Completed/false/0")
    env = {name: f"{CANARY}-{name}" for name in secrets}
    result = cloud.run(script, "run", *flags, *dry_run, **env)
    assert dry_run or len(cloud.calls()) >= 4
    assert CANARY not in result.stdout + result.stderr
    assert CANARY not in str(cloud.calls())
    for path in cloud.clone.rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    "line",
    [
        "gcloud compute tpus queued-resources create x --best-effort",
        "gcloud compute tpus queued-resources create x --spot=yes",
        "gcloud compute tpus tpu-vm create x",
        "kubectl --context=c get jobset x --watch",
        "kubectl --context=c scale job x",
        "sky jobs launch --cloud=gcp task.yaml",
        "sbatch --gres=gpu:8 job.sbatch",
    ],
)
def test_a_call_that_was_not_looked_up_fails_its_test(line):
    with pytest.raises(AssertionError):
        published.check(line.split())
