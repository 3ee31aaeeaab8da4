"""A run on Google Kubernetes Engine, against fakes of gcloud, kubectl, docker and xpk.

What the manifests hold is compared with the published API in test_jobset.py.
"""

import re
import shlex

import pytest

from tests.launch import published
from tests.launch.fakes import Answer, words_in_order

SCRIPT = "gke.sh"
ACCOUNT = "bert-train@my-project-123.iam.gserviceaccount.com"
FLAGS = [
    "--name=bert-base",
    "--project=my-project-123",
    "--zone=us-central1-a",
    "--type=ct6e-standard-4t",
    "--topology=4x4",
    "--bucket=my-bucket",
    f"--service_account={ACCOUNT}",
    "--config=configs/base.py",
]
IMAGE = "us-central1-docker.pkg.dev/my-project-123/bert-jax/bert-jax:0123456789ab"
NOT_FOUND = Answer(err='Error from server (NotFound): "bert-base" not found', code=1)
BUCKET = "storage buckets describe gs://my-bucket"
SERVICE_ACCOUNT = f"iam service-accounts describe {ACCOUNT}"
JOBSET = "get jobset bert-base --output=json"
JOB = "get job bert-base-prepare"
CODES = "get pods .*exitCode"
PODS = "get pods .*waiting"
DELETED = "node-pools delete|delete jobset"
NO_NETWORK = Answer(err="Unable to connect to the server: i/o timeout", code=1)
IMAGE_DENIED = "bert-base-slice-0-0-x Pending   ImagePullBackOff pull: 403 Forbidden"
UNSCHEDULABLE = "bert-base-slice-0-0-x Pending Unschedulable 0/4 nodes are available"
SUSPEND = 'patch jobset bert-base .*"suspend":true'


@pytest.fixture
def gke(cloud):
    """A project with nothing in it, where all goes well."""
    cloud.reply("describe", Answer(code=1))
    cloud.reply(BUCKET, "my-bucket")
    cloud.reply(SERVICE_ACCOUNT, ACCOUNT)
    cloud.reply("get (namespace|serviceaccount)", NOT_FOUND)
    cloud.reply("node-pools list", "bert-base-0")
    cloud.reply("git .*rev-parse", "0123456789ab")
    cloud.reply(JOB, "Complete")
    cloud.reply(JOBSET, NOT_FOUND, "/false/0", "Completed/false/0")
    return cloud


def test_a_dry_run_prints_what_the_real_one_does_and_does_nothing(gke):
    gke.reply(JOBSET, NOT_FOUND, "Completed/false/0")
    args = ["run", *FLAGS, "--spot", "--with_cluster"]
    end = ["--", "--config.data.sources=('text:/a b/*.txt',)"]
    dry = gke.run(SCRIPT, *args, "--dry_run", *end)
    assert all("rev-parse" in words for words in gke.calls())
    (gke.fakes / "calls").unlink()
    gke.run(SCRIPT, *args, *end)
    done = [words for words in gke.calls() if "rev-parse" not in words]
    assert gke.printed(dry.stdout) == done
    assert len(done) > 20


def test_the_cluster_is_private_and_pods_need_no_key(gke):
    gke.run(SCRIPT, "create", *FLAGS)
    (cluster,) = gke.calls("clusters create")
    assert {
        "--enable-private-nodes",
        "--no-enable-ip-access",
        "--workload-pool=my-project-123.svc.id.goog",
        "--addons=GcsFuseCsiDriver",
        f"--service-account={ACCOUNT}",
        "--shielded-secure-boot",
    } <= set(cluster)
    (binding,) = gke.calls("workloadIdentityUser")
    member = "--member=serviceAccount:my-project-123.svc.id.goog[bert-jax/bert-jax]"
    assert member in binding and ACCOUNT in binding
    assert gke.calls(f"annotate .*iam.gke.io/gcp-service-account={ACCOUNT}")
    assert not gke.calls("keys")


def test_the_node_pool_is_the_slice(gke):
    gke.run(SCRIPT, "create", *FLAGS, "--spot")
    (pool,) = gke.calls("node-pools create")
    assert {
        "--machine-type=ct6e-standard-4t",
        "--tpu-topology=4x4",
        "--num-nodes=4",
        "--node-labels=made-by=bert-jax,bert_jax_run=bert-base",
        "--spot",
        f"--service-account={ACCOUNT}",
    } <= set(pool)


def test_hosts_of_tpu7x_are_told_their_topology_by_a_policy(gke):
    flags = [*FLAGS, "--type=tpu7x-standard-4t", "--topology=2x2x2"]
    gke.run(SCRIPT, "create", *flags)
    (policy,) = gke.calls("resource-policies create workload-policy")
    assert {"--accelerator-topology=2x2x2", "--type=HIGH_THROUGHPUT"} <= set(policy)
    (pool,) = gke.calls("node-pools create")
    assert "--placement-policy=bert-base" in pool and "--num-nodes=2" in pool
    assert not [word for word in pool if word.startswith("--tpu-topology")]
    gke.run(SCRIPT, "delete", *flags)
    assert words_in_order(gke.calls(), "node-pools delete", "resource-policies delete")


def test_a_command_that_fails_beside_a_running_jobset_deletes_nothing(gke):
    gke.reply("docker build", Answer(err="no daemon", code=1))
    gke.reply(JOBSET, "/false/0")
    result = gke.run(SCRIPT, "run", *FLAGS, code=1)
    assert "training may be going on there: nothing is deleted" in result.stderr
    assert "delete" in result.stderr and not gke.calls(" delete ")


def test_what_is_there_is_not_made_again(gke):
    gke.reply("describe", "there")
    gke.reply("clusters list", "RUNNING")
    gke.reply("get (namespace|serviceaccount)", "there")
    gke.run(SCRIPT, "create", *FLAGS)
    assert not gke.calls(" create ")


@pytest.mark.parametrize("command", ["create", "run"])
@pytest.mark.parametrize(
    "before, broken, after, left",
    [
        ("", "clusters create", "", "nothing of it is left"),
        ("", "clusters create", "ERROR", "may be there (ERROR)"),
        ("", "get-credentials", "RUNNING", "may be there (RUNNING)"),
        ("", "kubectl", "RUNNING", "may be there (RUNNING)"),
        ("ERROR", "get-credentials", "ERROR", "may be there (ERROR)"),
        ("", "clusters create", NO_NETWORK, "may be there (UNKNOWN)"),
    ],
)
def test_a_cluster_that_was_not_made_has_trained_nothing(
    gke, command, before, broken, after, left
):
    gke.reply("kubectl", NO_NETWORK)
    gke.reply("clusters list", before, after)
    gke.reply(broken, Answer(err="no quota", code=1))
    said = gke.run(SCRIPT, command, *FLAGS, code=74).stderr
    assert said.index("no quota") < said.index("nothing was trained") < said.index(left)
    deletes = "gcloud container clusters delete bert-jax --project=my-project-123"
    assert (deletes in said) == (after != "") and "may be going on" not in said
    assert not gke.calls(f"{DELETED}|storage rsync|create .*yaml")


@pytest.mark.parametrize("state", ["RUNNING", NO_NETWORK])
def test_training_may_go_on_in_a_cluster_that_was_there(gke, state):
    gke.reply("clusters list", state)
    gke.reply("get-credentials|kubectl", NO_NETWORK)
    said = gke.run(SCRIPT, "run", *FLAGS, code=72).stderr
    assert "nothing is deleted" in said and "nothing was trained" not in said
    assert not gke.calls("clusters create")


@pytest.mark.parametrize("command", ["create", "run"])
@pytest.mark.parametrize(
    "question, flag", [(BUCKET, "bucket"), (SERVICE_ACCOUNT, "service_account")]
)
def test_without_bucket_or_account_nothing_is_made(gke, command, question, flag):
    gke.reply(question, Answer(err="WARNING: old\nERROR: (gcloud) 404: none", code=1))
    said = gke.run(SCRIPT, command, *FLAGS, code=2).stderr
    assert said.count("\n") == 1
    assert f"--{flag}=" in said and "404: none" in said
    assert "launch/service_account.sh" in said
    assert all("describe" in words for words in gke.calls())


def test_the_image_is_the_last_commit_and_is_named_by_it(gke):
    gke.run(SCRIPT, "install", *FLAGS)
    assert words_in_order(
        gke.calls(), "git .*archive.* HEAD", "docker build.*" + IMAGE, "push " + IMAGE
    )
    assert gke.calls("bert-jax .*role=roles/artifactregistry.reader")


def test_prepare_waits_for_its_job(gke):
    gke.reply(JOB, "", "", "Complete")
    gke.run(SCRIPT, "prepare", *FLAGS)
    assert len(gke.calls(JOB)) == 3


def test_a_failed_prepare_fails_the_run(gke):
    gke.reply(JOB, "", "Failed")
    gke.run(SCRIPT, "run", *FLAGS, code=1)
    assert not gke.calls("create .*jobset.yaml")
    assert gke.calls("node-pools delete")


def test_train_leaves_a_running_jobset_alone(gke):
    gke.reply(JOBSET, "/false/2")
    gke.run(SCRIPT, "train", *FLAGS)
    assert not gke.calls(" create | delete | patch ")


def test_train_lets_a_stopped_jobset_go_on(gke):
    gke.reply(JOBSET, "/true/2")
    gke.run(SCRIPT, "train", *FLAGS)
    assert gke.calls('patch jobset bert-base .*"suspend":false')


@pytest.mark.parametrize("state", ["Completed", "Failed"])
def test_train_replaces_a_jobset_that_has_ended(gke, state):
    gke.reply(JOBSET, f"{state}/false/2")
    gke.run(SCRIPT, "train", *FLAGS)
    assert words_in_order(gke.calls(), "delete jobset", "create .*jobset.yaml")


def test_wait_follows_restarts_that_bring_checkpoints(gke):
    gke.reply(JOBSET, *[f"/false/{n}" for n in range(8)], "Completed/false/8")
    gke.reply("storage ls", *[f"gs://b/checkpoints/{n}00/" for n in range(9)])
    said = gke.run(SCRIPT, "wait", *FLAGS).stderr
    assert "restart 7, newest checkpoint 700" in said


def test_a_crash_loop_is_stopped_and_does_not_go_on_costing(gke):
    gke.reply(JOBSET, *[f"/false/{n}" for n in range(5)], "/true/4")
    gke.reply("storage ls", "gs://b/checkpoints/100/")
    gke.reply("logs .*completion-index=0", "Traceback")
    result = gke.run(SCRIPT, "run", *FLAGS, code=76)
    assert "3 restarts in a row brought no newer checkpoint" in result.stderr
    order = ["logs .*index=0", SUSPEND, "delete jobset", "node-pools delete"]
    assert "\nTraceback\n" in result.stderr and "gcloud logging read" in result.stderr
    assert words_in_order(gke.calls(), *order)


def test_a_crash_loop_that_cannot_be_stopped_is_still_there(gke):
    gke.reply(JOBSET, *[f"/false/{n}" for n in range(5)])
    gke.reply(SUSPEND, NO_NETWORK)
    gke.run(SCRIPT, "run", *FLAGS, code=72)
    assert not gke.calls(DELETED)


@pytest.mark.parametrize(
    "codes, code",
    [("76 p0\n77 p1\n76 p2", 77), (" p0\n2 p1\n p2", 2), ("137 p1", 137)],
)
def test_a_failed_jobset_ends_with_code_and_log_of_the_first_cause(gke, codes, code):
    gke.reply(JOBSET, "/false/0", "Failed/false/0")
    gke.reply(CODES, codes)
    gke.reply("logs .*p1", "ValueError: of p1")
    said = gke.run(SCRIPT, "wait", *FLAGS, code=code).stderr
    log = said.index("\nValueError: of p1\n")
    assert log < said.index(f"training ended with {code}:")
    assert len(gke.calls("logs .*--container=train --tail=30 p[0-9]$")) == 1


def test_a_failed_jobset_without_pods_names_where_their_logs_are(gke):
    gke.reply(JOBSET, "/false/0", "Failed/false/0")
    said = gke.run(SCRIPT, "wait", *FLAGS, code=1).stderr
    assert "gcloud logging read" in said and "with 1:" in said


def test_the_log_of_a_failed_prepare_is_shown(gke):
    gke.reply(JOB, "", "FailureTarget Failed")
    gke.reply(CODES, "78 bert-base-prepare-x")
    gke.reply("logs .*bert-base-prepare-x", "DataError: text.txt")
    said = gke.run(SCRIPT, "prepare", *FLAGS, code=78).stderr
    assert said.index("DataError: text.txt") < said.index("prepare ended with 78:")
    assert gke.calls("get pods .*job-name=bert-base-prepare ")
    assert gke.calls("logs .*--container=prepare --tail=30")


def test_wait_for_what_is_stopped_missing_or_not_to_be_asked(gke):
    gke.reply(JOBSET, "/true/0")
    gke.run(SCRIPT, "wait", *FLAGS, code=75)
    gke.reply(JOBSET, NOT_FOUND)
    gke.run(SCRIPT, "wait", *FLAGS, code=1)
    gke.reply(JOBSET, Answer(err="Unauthorized", code=1))
    result = gke.run(SCRIPT, "wait", *FLAGS, code=72, BERT_JAX_MISSES="2")
    assert result.stderr.count("Unauthorized") == 2


@pytest.mark.parametrize("question", [JOBSET, JOB])
def test_a_run_that_cannot_be_asked_for_is_not_deleted(gke, question):
    gke.reply(question, *[NOT_FOUND] * (question == JOBSET), "/false/0", NO_NETWORK)
    result = gke.run(SCRIPT, "run", *FLAGS, code=72, BERT_JAX_MISSES="3")
    assert "did not answer 3 times in a row" in result.stderr
    assert "nothing is deleted" in result.stderr and " delete " in result.stderr
    assert not gke.calls(DELETED)


@pytest.mark.parametrize("command", ["docker push", "create .*jobset.yaml"])
def test_a_command_that_fails_where_the_cluster_is_silent_deletes_nothing(gke, command):
    gke.reply(command, NO_NETWORK)
    gke.reply(JOBSET, *[NOT_FOUND] * ("jobset" in command), NO_NETWORK)
    gke.run(SCRIPT, "run", *FLAGS, code=72)
    assert not gke.calls(DELETED)


def test_train_does_not_begin_where_the_cluster_is_silent(gke):
    gke.reply(JOBSET, NO_NETWORK)
    gke.run(SCRIPT, "train", *FLAGS, code=72)
    assert not gke.calls(" create ")


@pytest.mark.parametrize("question, command", [(JOBSET, "wait"), (JOB, "prepare")])
def test_a_network_that_comes_back_changes_nothing(gke, question, command):
    gone = [NO_NETWORK, NO_NETWORK, "/false/0"]
    gke.reply(question, *gone, *gone, "Completed/false/0 Complete")
    gke.run(SCRIPT, command, *FLAGS, BERT_JAX_MISSES="3")


def test_a_prepare_that_somebody_deleted_is_not_waited_for(gke):
    gke.reply(JOB, NOT_FOUND)
    said = gke.run(SCRIPT, "prepare", *FLAGS, code=1).stderr
    assert "there is no Job bert-base-prepare" in said


def test_a_warning_before_the_answer_is_not_the_answer(gke):
    gke.reply(JOBSET, "W0101 plugin: Failed/true\nCompleted/false/0")
    gke.run(SCRIPT, "wait", *FLAGS)


@pytest.mark.parametrize("step", ["prepare", "wait"])
def test_pods_that_never_start_end_the_run_and_its_costs(gke, step):
    gke.reply(JOB, "" if step == "prepare" else "Complete")
    gke.reply(JOBSET, NOT_FOUND, "/false/0" if step == "wait" else NOT_FOUND)
    gke.reply(PODS, IMAGE_DENIED)
    gke.reply("get events .*bert-base-slice-0-0-x", "Failed: 403 of the image")
    result = gke.run(SCRIPT, "run", *FLAGS, code=73, BERT_JAX_NOT_RUNNING="3")
    assert len(gke.calls(PODS)) == 3
    assert f"  {IMAGE_DENIED}\n  Failed: 403 of the image\n" in result.stderr
    assert f"give {step} again; the node pools are paid for" in result.stderr
    assert words_in_order(gke.calls(), "storage rsync", "node-pools delete")


def test_wait_alone_deletes_nothing_where_no_pod_starts(gke):
    gke.reply(JOBSET, "/false/0")
    said = gke.run(SCRIPT, "wait", *FLAGS, code=73, BERT_JAX_NOT_RUNNING="2").stderr
    assert "there is no pod" in said
    assert not gke.calls(DELETED) and not gke.calls(SUSPEND)


def test_a_prepare_that_never_starts_beside_training_deletes_nothing(gke):
    gke.reply(JOB, "")
    gke.reply(JOBSET, "/false/0")
    gke.reply(PODS, UNSCHEDULABLE)
    gke.run(SCRIPT, "run", *FLAGS, code=73, BERT_JAX_NOT_RUNNING="2")
    assert not gke.calls(DELETED)


def test_pods_that_start_late_or_again_are_waited_for(gke):
    gke.reply(JOBSET, *["/false/0"] * 8, "Completed/false/0")
    pending, running = [IMAGE_DENIED] * 2, "bert-base-slice-0-0-x Running"
    gke.reply(PODS, *pending, running, *pending, Answer(code=1), running)
    gke.run(SCRIPT, "wait", *FLAGS, BERT_JAX_NOT_RUNNING="3")


def test_a_preempted_slice_is_waited_for(gke):
    gke.reply(JOBSET, *["/false/1"] * 8, "Completed/false/1")
    gke.reply(PODS, UNSCHEDULABLE)
    gke.run(SCRIPT, "wait", *FLAGS, BERT_JAX_NOT_RUNNING="3")
    gke.reply(JOBSET, "/false/1")
    gke.reply(PODS, IMAGE_DENIED)  # on a node, which is paid for
    gke.run(SCRIPT, "wait", *FLAGS, code=73, BERT_JAX_NOT_RUNNING="3")


@pytest.mark.parametrize("question, command", [(JOBSET, "wait"), (JOB, "prepare")])
def test_now_and_then_it_says_what_the_pods_do(gke, question, command):
    gke.reply(question, *["/false/0"] * 6, "Completed/false/0 Complete")
    gke.reply(PODS, *[IMAGE_DENIED] * 3, "a Running\nb Running")
    said = gke.run(SCRIPT, command, *FLAGS, BERT_JAX_HEARTBEAT="2").stderr
    assert said.splitlines() == [
        f"launch: {command} goes on, pods: 1 Pending ({IMAGE_DENIED})",
        *[f"launch: {command} goes on, pods: 2 Running"] * 2,
    ]


@pytest.mark.parametrize("name", ["MISSES", "NOT_RUNNING", "HEARTBEAT"])
@pytest.mark.parametrize("value", ["0", "2.5", "many"])
def test_what_is_counted_is_a_whole_number(gke, name, value):
    said = gke.run(SCRIPT, "wait", *FLAGS, code=2, **{f"BERT_JAX_{name}": value})
    assert said.stderr.count("\n") == 1 and f"BERT_JAX_{name}='{value}'" in said.stderr


def test_collect_saves_the_logs_of_pods_beside_the_rest(gke):
    gke.reply("logs --prefix .*jobset-name", "[pod/p0/train] step 1")
    gke.reply("logs --prefix .*job-name=bert-base-prepare", "[pod/p/prepare] done")
    gke.run(SCRIPT, "collect", *FLAGS)
    (log,) = (gke.clone / "runs/bert-base/logs").iterdir()
    assert log.read_text() == "[pod/p0/train] step 1\n[pod/p/prepare] done\n"
    assert all("--tail=-1" in words for words in gke.calls("logs"))


def test_collect_goes_on_without_logs_of_pods(gke):
    gke.reply("kubectl .*logs", NO_NETWORK)
    said = gke.run(SCRIPT, "collect", *FLAGS).stderr
    assert "logs of pods could not be saved" in said
    assert gke.calls("storage rsync")
    assert not list((gke.clone / "runs/bert-base/logs").iterdir())


def test_status_logs_stop_collect_delete(gke):
    assert "checkpoint: none" in gke.run(SCRIPT, "status", *FLAGS).stdout
    gke.run(SCRIPT, "logs", *FLAGS, "--follow")
    assert gke.calls("logs --container=train .*--follow .*job-completion-index=0")
    gke.run(SCRIPT, "stop", *FLAGS)
    assert gke.calls(SUSPEND)
    gke.run(SCRIPT, "collect", *FLAGS)
    assert gke.calls("storage rsync")
    gke.run(SCRIPT, "delete", *FLAGS)
    assert gke.calls("node-pools delete") and not gke.calls("clusters delete")
    gke.run(SCRIPT, "delete", *FLAGS, "--with_cluster")
    assert gke.calls("clusters delete")


def test_every_kubectl_command_names_its_cluster(gke):
    gke.run(SCRIPT, "run", *FLAGS)
    context = "--context=gke_my-project-123_us-central1_bert-jax"
    assert all(words[1] == context for words in gke.calls("^kubectl"))


@pytest.mark.parametrize(
    "kind, topology, tpu_type",
    [
        ("ct6e-standard-4t", "4x4", "v6e-4x4"),
        ("ct5lp-hightpu-4t", "4x8", "v5litepod-4x8"),
        ("tpu7x-standard-4t", "2x2x2", "tpu7x-2x2x2"),
    ],
)
def test_the_command_of_xpk(gke, kind, topology, tpu_type):
    source = "--config.data.sources=('text:/a b/*.txt',)"
    slice_flags = [f"--type={kind}", f"--topology={topology}", "--spot"]
    gke.run(SCRIPT, "xpk", *FLAGS, *slice_flags, "--", source)
    (words,) = gke.calls("^xpk")
    assert words[1:3] == ["workload", "create"]
    assert {
        "--restart-on-exit-codes=75,76",
        f"--tpu-type={tpu_type}",
        f"--docker-image={IMAGE}",
        "--spot",
    } <= set(words)
    (command,) = [w for w in words if w.startswith("--command=")]
    assert shlex.split(command.removeprefix("--command="))[-1] == source


def test_xpk_as_the_readme_has_it(gke):
    text = (gke.clone / "launch/README.md").read_text()
    block = text[text.index("    xpk storage attach") :].replace("\\\n", " ")
    attach, submit, end = block.split("\n", 2)
    published.check(shlex.split(attach))
    (mount,) = re.findall("--mount-point=([^ ]*)", attach)
    script, *args = shlex.split(submit)
    assert script == "launch/gke.sh" and end.startswith("\n")
    gke.run(SCRIPT, *args)
    (words,) = gke.calls("^xpk")
    assert {f"--storage={shlex.split(attach)[3]}", "--cluster=my-cluster"} <= set(words)
    assert f"--workdir={mount}/runs/bert-base" in " ".join(words)


@pytest.mark.parametrize("command", "create install prepare train xpk delete".split())
def test_a_failed_command_fails_the_subcommand(gke, command):
    gke.reply("clusters list", "RUNNING")
    gke.reply("kubectl|docker push|xpk|node-pools", Answer(err="broken", code=1))
    code = 72 if command == "train" else 1  # it asks first what is there
    gke.run(SCRIPT, command, *FLAGS, code=code)


@pytest.mark.parametrize(
    "flag",
    [
        "--name=Bert",
        "--name=" + "b" * 38,
        "--type=n2-standard-4t",
        "--topology=4x3x3",
        "--topology=2x2x",
        "--namespace=kube_system",
        "--cluster=-x",
        "--max_restarts=many",
        "--bucket=B",
        "--with_cluster=yes",
    ],
)
def test_a_mistake_is_one_line_and_code_2(gke, flag):
    flags = [*FLAGS, "--type=ct6e-standard-8t"] if flag.endswith("3x3") else FLAGS
    result = gke.run(SCRIPT, "run", *flags, flag, code=2)
    assert result.stderr.count("\n") == 1
    if flag == "--name=Bert":
        assert "(all of it must match [a-z][a-z0-9-]{0,35}[a-z0-9])" in result.stderr
    assert gke.calls() == []
