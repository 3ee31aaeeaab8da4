"""Several slices on GKE: node pools, the JobSet, what pods wait for, and the end."""

import itertools
import os
import subprocess

import pytest
import yaml
from jax._src.clusters import cloud_tpu_cluster

from tests.launch import fakes, test_gke, test_jobset
from tests.launch.fakes import Answer, words_in_order
from tests.launch.test_gke import CODES, JOBSET, NO_NETWORK, PODS, SCRIPT

FLAGS = [*test_gke.FLAGS, "--slices=2"]
gke = test_gke.gke


@pytest.fixture
def slices(gke):
    """A project where all goes well, with pools for two slices once they are made."""
    gke.reply("node-pools list", "bert-base-0\nbert-base-1")
    return gke


@pytest.fixture
def jobset(slices):
    """The JobSet of two slices of four hosts."""
    slices.run(SCRIPT, "train", *FLAGS, "--dry_run")
    path = slices.clone / "runs/launch/bert-base.jobset.yaml"
    return yaml.safe_load(path.read_text())


def deleted(cloud):
    return sorted(words[4] for words in cloud.calls("node-pools delete"))


def test_a_slice_is_a_node_pool(slices):
    slices.run(SCRIPT, "create", *FLAGS)
    pools = slices.calls("node-pools create")
    assert sorted(words[4] for words in pools) == ["bert-base-0", "bert-base-1"]
    for words in pools:
        assert {
            "--num-nodes=4",
            "--tpu-topology=4x4",
            "--node-labels=made-by=bert-jax,bert_jax_run=bert-base",
        } <= set(words)


MEETING = r"""#!/usr/bin/env bash
[[ $* != *"node-pools list"* ]] || printf '%s\n' bert-base-0 bert-base-1
[[ "$2 $3" == "node-pools create" || "$2 $3" == "node-pools delete" ]] || exit 0
touch "$FAKES/$3.$4"
for ((i = 0; i < 50; i++)); do
  [[ ! -e $FAKES/$3.bert-base-0 || ! -e $FAKES/$3.bert-base-1 ]] || exit 0
  sleep 0.1
done
exit 9
"""


@pytest.mark.parametrize("command", ["create", "delete"])
def test_slices_are_made_and_deleted_side_by_side(slices, command):
    slices.add_program("gcloud", MEETING)
    slices.run(SCRIPT, command, *FLAGS)
    assert len(list(slices.fakes.glob(f"{command}.bert-base-*"))) == 2


def test_a_pool_that_is_there_is_not_made_again(slices):
    slices.reply("node-pools describe bert-base-0", "bert-base-0")
    slices.run(SCRIPT, "create", *FLAGS)
    assert len(slices.calls("node-pools create bert-base-1")) == 1
    assert len(slices.calls("node-pools create")) == 1


def test_slices_of_tpu7x_share_a_policy(slices):
    flags = [*FLAGS, "--type=tpu7x-standard-4t", "--topology=2x2x2"]
    slices.run(SCRIPT, "create", *flags)
    assert len(slices.calls("resource-policies create")) == 1
    assert len(slices.calls("node-pools create .*--placement-policy=bert-base ")) == 2


def test_a_run_of_two_slices(slices):
    slices.reply(JOBSET, test_gke.NOT_FOUND, "Completed/false/0")
    dry = slices.run(SCRIPT, "run", *FLAGS, "--dry_run")
    (slices.fakes / "calls").unlink()
    slices.run(SCRIPT, "run", *FLAGS)
    done = [words for words in slices.calls() if "rev-parse" not in words]
    # Node pools are made and deleted at the same time, so in any order.
    assert sorted(slices.printed(dry.stdout)) == sorted(done)
    order = ["create .*jobset.yaml", "storage rsync", "delete jobset", "pools delete"]
    assert words_in_order(done, *order)
    assert deleted(slices) == ["bert-base-0", "bert-base-1"]


def test_the_log_is_that_of_the_first_slice(slices):
    slices.run(SCRIPT, "logs", *FLAGS)
    index = "jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
    assert slices.calls(f"logs .*{index}$")


def test_one_slice_that_fails_ends_the_run(slices):
    slices.reply(JOBSET, test_gke.NOT_FOUND, "/false/0", "Failed/false/0")
    failed = "bert-base-slice-1-2-x"
    slices.reply(CODES, f"76 bert-base-slice-0-0-x\n1 {failed}")
    slices.reply(f"logs .*{failed}", "Traceback")
    said = slices.run(SCRIPT, "run", *FLAGS, code=1).stderr
    assert f"the last lines of {failed}:" in said and "\nTraceback\n" in said
    assert deleted(slices) == ["bert-base-0", "bert-base-1"]


def test_a_slice_that_was_taken_away_is_waited_for(slices):
    slices.reply(JOBSET, *["/false/1"] * 8, "Completed/false/1")
    slices.reply(PODS, f"bert-base-slice-0-0-x Running\n{test_gke.UNSCHEDULABLE}")
    few = {"BERT_JAX_NOT_RUNNING": "3", "BERT_JAX_HEARTBEAT": "4"}
    said = slices.run(SCRIPT, "wait", *FLAGS, **few).stderr
    assert "1 Running" in said and "1 Pending" in said
    assert f"({test_gke.UNSCHEDULABLE})" in said


def test_a_slice_that_never_arrives_ends_the_wait(slices):
    slices.reply(JOBSET, "/false/0")
    late = "bert-base-slice-1-0-y Pending   ImagePullBackOff"
    slices.reply(PODS, f"bert-base-slice-0-0-x Running\n{late}")
    slices.reply("get events .*bert-base-slice-1-0-y", "Failed: 403 of the image")
    said = slices.run(SCRIPT, "wait", *FLAGS, code=73, BERT_JAX_NOT_RUNNING="3").stderr
    assert len(slices.calls(PODS)) == 3
    assert f"  {late}\n  Failed: 403 of the image\n" in said


def test_where_one_slice_is_not_to_be_had_the_other_is_deleted(slices):
    slices.reply("node-pools create bert-base-1", Answer(err="stockout", code=1))
    slices.reply("node-pools list", "bert-base-0")
    slices.reply(JOBSET, test_gke.NOT_FOUND)
    said = slices.run(SCRIPT, "run", *FLAGS, code=1).stderr
    assert "stockout" in said and not slices.calls("create .*jobset.yaml")
    assert deleted(slices) == ["bert-base-0"]


def test_delete_finds_the_pools_of_the_run_itself(slices):
    slices.run(SCRIPT, "delete", *test_gke.FLAGS)
    assert slices.calls("list .*--filter=config.labels.bert_jax_run=bert-base ")
    assert deleted(slices) == ["bert-base-0", "bert-base-1"]


@pytest.mark.parametrize("broken", ["kubectl", "node-pools delete bert-base-0"])
def test_what_cannot_be_deleted_does_not_keep_the_rest(slices, broken):
    slices.reply(broken, NO_NETWORK)
    slices.run(SCRIPT, "delete", *FLAGS, "--with_cluster", code=1)
    assert deleted(slices) == ["bert-base-0", "bert-base-1"]
    assert slices.calls("clusters delete")


def test_pools_that_nobody_can_list_are_no_success(slices):
    slices.reply("node-pools list", NO_NETWORK)
    slices.run(SCRIPT, "delete", *FLAGS, code=1)


@pytest.mark.parametrize(
    "number, topology", [("0", "4x4"), ("100", "4x4"), ("two", "4x4"), ("2", "2x2")]
)
def test_slices_that_cannot_be(gke, number, topology):
    flags = [*FLAGS, f"--slices={number}", f"--topology={topology}"]
    said = gke.run(SCRIPT, "run", *flags, code=2).stderr
    assert said.count("\n") == 1 and said.startswith("launch: --slices=")
    assert number in said
    assert gke.calls() == []


def test_xpk_is_told(slices):
    slices.run(SCRIPT, "xpk", *FLAGS)
    assert slices.calls("^xpk .*--num-slices=2 ")


# ------------------------------------------------------------------------- the JobSet


def test_every_slice_is_a_job_of_all_its_hosts(jobset):
    test_jobset.compare(jobset, test_jobset.JOBSET)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    assert (replicated["name"], replicated["replicas"]) == ("slice", 2)
    job = test_jobset.job_of(jobset)
    assert (job["completions"], job["parallelism"]) == (4, 4)
    topology = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    pool_label = "cloud.google.com/gke-nodepool"
    assert jobset["metadata"]["annotations"][topology] == pool_label
    assert pool_label not in test_jobset.pod_of(jobset)["nodeSelector"]


def test_a_retryable_code_of_one_slice_restarts_all(jobset):
    assert test_jobset.outcome(jobset, 76) == "RestartJobSet"
    policy = jobset["spec"]["failurePolicy"]
    assert policy["restartStrategy"] == "BlockingRecreate"
    assert all("targetReplicatedJobs" not in rule for rule in policy["rules"])


def start_host(cloud, jobset, sleep=fakes.FAKE, shell=""):
    """Runs a pod's command with its arguments in a shell that was told `shell` before.

    Returns its exit code.
    """
    (container,) = test_jobset.pod_of(jobset)["containers"]
    for program in ("getent", "python"):
        cloud.add_program(program, fakes.FAKE)
    cloud.add_program("sleep", sleep)
    (cloud.home / "bashrc").write_text(f"ulimit() {{ :; }}\n{shell}")  # root's in a pod
    env = cloud.env | {"BASH_ENV": str(cloud.home / "bashrc")}
    return subprocess.run(container["command"] + container["args"], env=env).returncode


def test_a_host_waits_for_the_first_of_every_slice(slices, jobset):
    slices.reply("getent hosts bert-base-slice-1", *[Answer(code=2)] * 2, "10.0.0.1")
    slices.reply("^python", Answer(code=76))
    assert start_host(slices, jobset) == 76
    calls = [" ".join(words) for words in slices.calls("^(getent|sleep|python)")]
    train, late = calls.pop(), "getent hosts bert-base-slice-1-0.bert-base"
    first = "getent hosts bert-base-slice-0-0.bert-base"
    assert calls == [first, late, "sleep 5", late, "sleep 5", late]
    (container,) = test_jobset.pod_of(jobset)["containers"]
    assert train == " ".join(["python -m bert_jax.train", *container["args"]])


def test_a_host_that_is_stopped_while_it_waits_wants_a_restart(slices, jobset):
    slices.reply("getent hosts bert-base-slice-1", Answer(code=2))
    assert start_host(slices, jobset, "#!/bin/sh\nkill -TERM $PPID\n") == 75
    assert not slices.calls("^python")


def test_a_host_does_not_wait_without_end(slices, jobset):
    slices.reply("getent hosts bert-base-slice-1", Answer(code=2))
    quarter = "sleep() { ((SECONDS += 900)); }"
    assert start_host(slices, jobset, shell=quarter) == 76
    assert len(slices.calls("getent hosts bert-base-slice-1")) == 4 + 1
    assert not slices.calls("^python")


def test_jax_finds_all_hosts_of_all_slices(jobset, monkeypatch):
    num_slices = jobset["spec"]["replicatedJobs"][0]["replicas"]
    hosts, ids = test_jobset.job_of(jobset)["completions"], []
    for number, host in itertools.product(range(num_slices), range(hosts)):
        names = [f"bert-base-slice-{number}-{i}.bert-base" for i in range(hosts)]
        given = {
            "TPU_WORKER_HOSTNAMES": ",".join(names),
            "TPU_WORKER_ID": str(host),
            "MEGASCALE_NUM_SLICES": str(num_slices),
            "MEGASCALE_SLICE_ID": str(number),
            "MEGASCALE_COORDINATOR_ADDRESS": "bert-base-slice-0-0.bert-base",
        }
        monkeypatch.setattr(os, "environ", os.environ | given)
        cluster = cloud_tpu_cluster.GkeTpuCluster
        assert cluster.get_process_count() == 8
        ids.append(cluster.get_process_id())
    assert ids == list(range(8))  # the first host of the first slice is process 0
    (container,) = test_jobset.pod_of(jobset)["containers"]
    ports = {port["containerPort"] for port in container["ports"]}
    assert int(cloud_tpu_cluster.coordinator_port) in ports
