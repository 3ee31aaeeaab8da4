"""jobset.yaml and skypilot.yaml: the exit codes that restart, and the commands."""

import pytest
import yaml

from tests.commands import ROOT, capture

JOBSET = yaml.safe_load((ROOT / "launch/jobset.yaml").read_text())
SKYPILOT = yaml.safe_load((ROOT / "launch/skypilot.yaml").read_text())
(REPLICATED_JOB,) = JOBSET["spec"]["replicatedJobs"]
JOB = REPLICATED_JOB["template"]["spec"]
POD = JOB["template"]["spec"]


def jobset_action(code: int | None = None, condition: str | None = None) -> str:
    """Returns JobSet's action for a pod's end: the first rule that matches decides."""
    assert JOB["backoffLimit"] == 0 and POD["restartPolicy"] == "Never"
    reason = "BackoffLimitExceeded"
    for rule in JOB["podFailurePolicy"]["rules"]:
        exit_codes = rule.get("onExitCodes")
        conditions = [c["type"] for c in rule.get("onPodConditions", [])]
        listed = exit_codes and code in exit_codes["values"]
        if condition in conditions or (
            exit_codes and listed == (exit_codes["operator"] == "In")
        ):
            if rule["action"] == "FailJob":
                reason = "PodFailurePolicy"
            break
    for rule in JOBSET["spec"]["failurePolicy"]["rules"]:
        if reason in rule.get("onJobFailureReasons", [reason]):
            return rule["action"]
    raise AssertionError(f"no rule for {reason}")


@pytest.mark.parametrize("code", [75, 76, 1, 2, 77, 78, 137, 139])
def test_jobset_restarts_on_75_and_76_and_after_a_preemption(code):
    action = "RestartJobSet" if code in (75, 76) else "FailJobSet"
    assert jobset_action(code) == action
    assert jobset_action(code, "DisruptionTarget") == "RestartJobSet"


def test_names_inside_the_jobset_agree():
    (container,) = POD["containers"]
    rules = JOB["podFailurePolicy"]["rules"]
    named = {r["onExitCodes"]["containerName"] for r in rules if "onExitCodes" in r}
    assert named == {container["name"]}
    assert container["volumeMounts"][0]["name"] == POD["volumes"][0]["name"]
    assert container["volumeMounts"][0]["mountPath"] == "/mnt/bert_jax"
    assert JOB["completions"] == JOB["parallelism"]
    chips = container["resources"]["limits"]["google.com/tpu"]
    topology = POD["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    rows, columns = map(int, topology.split("x"))
    assert JOB["completions"] * chips == rows * columns


def test_the_container_passes_its_arguments_to_training():
    """Runs the container's command with a `python` that prints its arguments."""
    (container,) = POD["containers"]
    shell, flag, script, *name = container["command"]
    script = script.replace("ulimit -l 68719476736", "true").replace("python", "echo")
    result = capture(shell, flag, script, *name, *container["args"])
    arguments = " ".join(container["args"])
    assert result.stdout == f"-m bert_jax.train {arguments}\n"
    assert "--workdir=/mnt/bert_jax/" in arguments


def test_skypilot_recovers_on_75_and_76_alone():
    recovery = SKYPILOT["resources"]["job_recovery"]
    assert recovery["recover_on_exit_codes"] == [75, 76]
    assert recovery["max_restarts_on_errors"] == 0


def test_skypilot_runs_the_restart_loop_on_the_bucket(tmp_path):
    """Runs `setup` and `run` in a directory whose scripts print their arguments."""
    (tmp_path / "launch").mkdir()
    for name in ("tpu_host.sh", "restart.sh"):
        script = tmp_path / "launch" / name
        script.write_text('#!/bin/sh\necho "launch/${0##*/}" "$@"\n')
        script.chmod(0o755)
    values = {"BUCKET": "my-bucket", "ARGUMENTS": "--config.seed=1 --config.remat=full"}
    values |= {"PATH": "/usr/bin:/bin"}
    script = SKYPILOT["setup"] + "\n" + SKYPILOT["run"]
    result = capture(
        "bash", "-euc", script, cwd=tmp_path, env=SKYPILOT["envs"] | values
    )
    assert result.stdout.splitlines() == [
        "launch/tpu_host.sh my-bucket",
        "launch/tpu_host.sh my-bucket",
        "launch/restart.sh .venv/bin/python -m bert_jax.train"
        " --config=configs/base.py --config.data.corpus_dir=/mnt/bert_jax/corpora/base"
        " --workdir=/mnt/bert_jax/runs/base --config.seed=1 --config.remat=full",
    ]
