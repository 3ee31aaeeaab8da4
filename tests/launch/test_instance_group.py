"""A run on a managed instance group of TPU hosts, against a fake gcloud.

What it shares with queued resources (launch/machines.sh) is tested there.
"""

import itertools

import pytest

from tests.launch.fakes import Answer, words_in_order

SCRIPT = "instance_group.sh"
ACCOUNT = "bert-train@my-project-123.iam.gserviceaccount.com"
FLAGS = [
    "--name=bert-base",
    "--project=my-project-123",
    "--zone=us-central1-a",
    "--type=ct6e-standard-4t",
    "--topology=2x4",
    "--bucket=my-bucket",
    f"--service_account={ACCOUNT}",
    "--config=configs/base.py",
]
GONE = Answer(err="ERROR: The resource 'x' was not found", code=1)
STATUS = "list-instances.*instanceStatus"
STATE = "on_host.sh state bert-jax-train"
RUNNING = "RUNNING\nRUNNING"
CREATE = "instance-groups managed create"
DELETE = "instance-groups managed delete"


@pytest.fixture
def group(cloud):
    """A cloud with no group yet, which gives one of two hosts when asked."""
    cloud.reply(STATUS, GONE, RUNNING)
    cloud.reply(r"list-instances.*\(name\)", "bert-base-1\nbert-base-0")
    cloud.reply("on_host.sh state", "ended 0")
    return cloud


@pytest.fixture
def ready(group):
    group.reply(STATUS, RUNNING)
    return group


def test_a_dry_run_prints_what_the_real_one_does_and_does_nothing(group):
    args = ["run", *FLAGS, "--spot"]
    end = ["--", "--config.data.sources=('text:/a b/*.txt',)"]
    dry = group.run(SCRIPT, *args, "--dry_run", *end)
    assert group.calls() == []
    group.run(SCRIPT, *args, *end)
    # Hosts are talked to at the same time, so in any order.
    assert sorted(group.printed(dry.stdout)) == sorted(group.calls())
    assert len(group.calls()) > 25


def test_create_makes_template_policy_and_group(group):
    group.run(SCRIPT, "create", *FLAGS, "--network=net", "--subnetwork=sub")
    assert words_in_order(
        group.calls(), "instance-templates create", "workload-policy", CREATE
    )
    (template,) = group.calls("instance-templates create")
    assert {
        "--machine-type=ct6e-standard-4t",
        f"--service-account={ACCOUNT}",
        "--no-address",
        "--shielded-secure-boot",
        "--network=net",
        "--subnet=projects/my-project-123/regions/us-central1/subnetworks/sub",
    } <= set(template)
    assert "--provisioning-model=SPOT" not in template
    (policy,) = group.calls("workload-policy bert")
    assert {"--accelerator-topology=2x4", "--region=us-central1"} <= set(policy)
    (made,) = group.calls(CREATE)
    assert {"--size=2", "--default-action-on-vm-failure=do-nothing"} <= set(made)
    assert made[-1].endswith("us-central1/resourcePolicies/bert-base-policy")


def test_spot_and_public_addresses(group):
    group.run(SCRIPT, "create", *FLAGS, "--spot", "--external_ips")
    (template,) = group.calls("instance-templates create")
    assert "--provisioning-model=SPOT" in template
    assert "--no-address" not in template
    assert all("--tunnel-through-iap" not in ssh for ssh in group.calls(" ssh "))


@pytest.mark.parametrize(
    "given, used",
    [
        ("mine", "projects/my-project-123/reservations/mine"),
        ("projects/other/reservations/x", "projects/other/reservations/x"),
    ],
)
def test_a_reservation_is_used_where_it_is_named(group, given, used):
    group.run(SCRIPT, "create", *FLAGS, f"--reservation={given}")
    (template,) = group.calls("instance-templates create")
    assert {
        "--provisioning-model=RESERVATION_BOUND",
        "--reservation-affinity=specific",
        f"--reservation={used}",
    } <= set(template)


def test_no_reservation_is_touched_unless_it_is_named(group):
    group.run(SCRIPT, "create", *FLAGS)
    assert not group.calls("instance-templates create.*(reservation|provisioning)")


def test_what_is_reserved_is_not_spot(group):
    flags = [*FLAGS, "--reservation=mine", "--spot"]
    said = group.run(SCRIPT, "run", *flags, code=2).stderr
    assert "--reservation and --spot" in said and said.count("\n") == 1
    assert group.calls() == []


@pytest.mark.parametrize(
    "kind, topology, hosts",
    [
        ("ct6e-standard-4t", "4x4", 4),
        ("ct5p-hightpu-4t", "2x2x2", 2),
        ("tpu7x-standard-4t", "4x4x4", 16),
        ("ct6e-standard-8t", "2x4", 1),
    ],
)
def test_hosts_are_counted_from_the_topology(group, kind, topology, hosts):
    args = ["create", *FLAGS, f"--type={kind}", f"--topology={topology}", "--dry_run"]
    out = group.run(SCRIPT, *args).stdout
    assert f"--size={hosts} " in out
    assert ("workload-policy" in out) == (hosts > 1)


def test_one_host_needs_no_policy(group):
    group.reply(STATUS, GONE, "RUNNING")
    group.reply(r"list-instances.*\(name\)", "bert-base-0")
    one = [*FLAGS, "--topology=2x2"]
    group.run(SCRIPT, "run", *one)
    assert not group.calls("resource-policies|workload-policy")


def test_create_waits_for_every_host(group):
    group.reply(STATUS, GONE, "STAGING", "RUNNING\nSTAGING", "RUNNING", RUNNING)
    group.run(SCRIPT, "create", *FLAGS)
    assert len(group.calls(STATUS)) == 5


def test_train_starts_on_every_host_prepare_on_the_first(ready):
    ready.run(SCRIPT, "prepare", *FLAGS)
    assert [w[3] for w in ready.calls("bert_jax.prepare")] == ["bert-base-0"]
    ready.run(SCRIPT, "train", *FLAGS)
    hosts = {w[3] for w in ready.calls("bert_jax.train")}
    assert hosts == {"bert-base-0", "bert-base-1"}


def test_one_host_that_fails_fails_the_subcommand(ready):
    ready.reply("ssh bert-base-0 .*install", Answer(code=1))
    ready.run(SCRIPT, "install", *FLAGS, code=1)


def test_codes_of_all_hosts_are_weighed(ready):
    ready.reply(f"ssh bert-base-0 .*{STATE}", "running", "ended 78")
    ready.reply(f"ssh bert-base-1 .*{STATE}", "running", "ended 76")
    ready.run(SCRIPT, "wait", *FLAGS, code=78)


def test_training_has_ended_when_every_host_says_so(ready):
    ready.reply(f"ssh bert-base-0 .*{STATE}", "ended 76")
    ready.reply(f"ssh bert-base-1 .*{STATE}", Answer(code=255), "ended 78")
    ready.run(SCRIPT, "wait", *FLAGS, code=78)


def test_a_host_that_does_not_say_so_for_long_is_lost(ready):
    ready.reply(f"ssh bert-base-0 .*{STATE}", "running", "ended 76")
    ready.reply(f"ssh bert-base-1 .*{STATE}", Answer(code=255))
    result = ready.run(SCRIPT, "wait", *FLAGS, code=69, BERT_JAX_MISSES="2")
    assert "not every host answered, 2 times" in result.stderr
    assert len(ready.calls(f"ssh bert-base-0 .*{STATE}")) == 3


GCLOUD_OF_MANY = r"""#!/usr/bin/env bash
[[ $* != *list-instances* ]] || { printf 'host-%02d\n' {0..19}; exit; }
echo 1 >>"$FAKES/running"
sleep 0.1
echo -1 >>"$FAKES/running"
[[ $* != *ssh\ host-03* ]] # this one fails
"""


def test_eight_hosts_are_talked_to_at_a_time_and_one_that_fails_is_noticed(cloud):
    cloud.add_program("gcloud", GCLOUD_OF_MANY)
    cloud.run(SCRIPT, "stop", *FLAGS, code=1)
    changes = [int(line) for line in (cloud.fakes / "running").read_text().split()]
    assert len(changes) == 2 * 20
    assert 1 < max(itertools.accumulate(changes)) <= 8


@pytest.mark.parametrize("state", ["STOPPING", "TERMINATED", "SUSPENDED"])
def test_one_preempted_host_is_a_lost_slice(ready, state):
    ready.reply(STATUS, RUNNING, f"RUNNING\n{state}")
    ready.reply(STATE, "running")
    ready.run(SCRIPT, "wait", *FLAGS, code=69)


def test_a_host_that_is_missing_for_long_is_a_lost_slice(ready):
    ready.reply(STATUS, RUNNING, "RUNNING")
    ready.reply(STATE, "running")
    ready.run(SCRIPT, "wait", *FLAGS, code=69, BERT_JAX_MISSES="3")


def test_after_a_preemption_everything_is_made_again(group):
    lost = "RUNNING\nTERMINATED"
    group.reply(STATUS, GONE, *[RUNNING] * 3, lost, lost, RUNNING)
    group.reply(STATE, "running", "running", "ended 0")
    group.run(SCRIPT, "run", *FLAGS)
    deleted = [DELETE, "templates delete", "policies delete"]
    made = ["templates create", "workload-policy", CREATE, "bert_jax.train"]
    assert words_in_order(group.calls(), *made, *deleted, *made, *deleted)


def test_losses_without_a_checkpoint_end_the_run(group):
    group.reply(STATUS, GONE, RUNNING, "RUNNING\nTERMINATED")
    group.run(SCRIPT, "run", *FLAGS, code=69, BERT_JAX_MAX_STALLED="1")
    assert len(group.calls(CREATE)) == 2


def test_delete_goes_on_past_what_is_missing_and_tells_of_errors(ready):
    ready.reply("templates delete", GONE)
    ready.run(SCRIPT, "delete", *FLAGS)
    assert len(ready.calls("delete")) == 3
    ready.reply("templates delete", Answer(err="ERROR: in use", code=1))
    assert "in use" in ready.run(SCRIPT, "delete", *FLAGS, code=1).stderr
    assert len(ready.calls("delete")) == 6


def test_status_logs_stop_collect(ready):
    assert "checkpoint: none" in ready.run(SCRIPT, "status", *FLAGS).stdout
    ready.run(SCRIPT, "logs", *FLAGS)
    ready.run(SCRIPT, "stop", *FLAGS)
    ready.run(SCRIPT, "collect", *FLAGS)
    assert len(ready.calls("on_host.sh log ")) == 1
    assert len(ready.calls("on_host.sh stop")) == 2
    assert ready.calls("storage rsync")


@pytest.mark.parametrize("command", "create install prepare train logs".split())
def test_a_failed_gcloud_fails_the_subcommand(group, command):
    group.reply("compute", Answer(err="broken", code=1))
    group.run(SCRIPT, command, *FLAGS, code=72 if command == "create" else 1)


@pytest.mark.parametrize("command", ["create", "run"])
def test_without_its_bucket_nothing_is_asked_for(group, command):
    group.reply("buckets describe", Answer(err="ERROR: 404", code=1))
    result = group.run(SCRIPT, command, *FLAGS, code=2)
    assert "--bucket=my-bucket cannot be read: ERROR: 404" in result.stderr
    assert "launch/service_account.sh" in result.stderr
    assert len(group.calls()) == 1


@pytest.mark.parametrize(
    "flag",
    [
        "--name=" + "b" * 51,
        "--type=n2-standard-4",
        "--topology=4",
        "--topology=3x3",
        "--topology=4x4;id",
        "--image_family=UBUNTU",
        "--reservation=My reservation",
        "--reservation=projects/x/mine",
    ],
)
def test_a_mistake_is_one_line_and_code_2(group, flag):
    result = group.run(SCRIPT, "run", *FLAGS, flag, code=2)
    assert result.stderr.count("\n") == 1
    assert group.calls() == []
