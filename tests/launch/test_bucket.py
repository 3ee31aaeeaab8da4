"""What launch/bucket.sh asks of the bucket, through the launchers that source it."""

import pytest

from tests.launch import test_gke, test_queued_resource
from tests.launch.fakes import Answer

NO_CHECKPOINT = Answer(
    err="ERROR: (gcloud.storage.ls) One or more URLs matched no objects.", code=1
)
DENIED = Answer(
    err="WARNING: old\nERROR: (gcloud.storage.ls) [me] 403: no storage.objects.list\nx",
    code=1,
)


def test_no_checkpoint_yet_is_no_error(cloud):
    cloud.reply("storage ls", NO_CHECKPOINT)
    result = cloud.run(test_gke.SCRIPT, "status", *test_gke.FLAGS)
    assert "newest checkpoint: none" in result.stdout and not result.stderr


def test_a_bucket_that_cannot_be_listed_is_not_one_without_checkpoints(cloud):
    cloud.reply("storage ls", DENIED)
    result = cloud.run(test_gke.SCRIPT, "status", *test_gke.FLAGS)
    assert "newest checkpoint: unknown" in result.stdout
    place = "gs://my-bucket/runs/bert-base/checkpoints/"
    assert result.stderr.count("\n") == 1
    assert f"{place} cannot be listed: ERROR" in result.stderr
    assert "403: no storage.objects.list" in result.stderr


def test_restarts_beside_a_bucket_that_cannot_be_listed_are_no_crash_loop(cloud):
    restarts = [f"/false/{n}" for n in range(9)]
    cloud.reply(test_gke.JOBSET, *restarts, "Completed/false/8")
    cloud.reply("storage ls", DENIED)
    result = cloud.run(test_gke.SCRIPT, "wait", *test_gke.FLAGS)
    assert "restart 8, newest checkpoint unknown" in result.stderr


def test_a_listing_after_one_that_failed_counts_again(cloud):
    cloud.reply(test_gke.JOBSET, *[f"/false/{n}" for n in range(9)])
    cloud.reply("storage ls", DENIED, DENIED, "gs://b/checkpoints/100/")
    result = cloud.run(test_gke.SCRIPT, "wait", *test_gke.FLAGS, code=76)
    assert "3 restarts in a row brought no newer checkpoint" in result.stderr
    assert "restart 5, newest" in result.stderr


def test_there_is_a_limit_to_tries_that_nobody_can_judge(cloud):
    one_life = ["ACTIVE", "SUSPENDED", "SUSPENDED"]
    states = [test_queued_resource.GONE, *one_life * 20]
    cloud.reply(test_queued_resource.RESOURCE, *states)
    cloud.reply(test_queued_resource.NODE, "READY")
    cloud.reply("storage ls", DENIED)
    flags = [*test_queued_resource.FLAGS, "--skip_prepare"]
    cloud.run(test_queued_resource.SCRIPT, "run", *flags, code=69)
    assert len(cloud.calls(test_queued_resource.CREATE)) == 11


def test_lost_machines_beside_a_bucket_that_cannot_be_listed_are_no_crash_loop(cloud):
    lives = 6
    one_life = ["ACTIVE", "SUSPENDED", "SUSPENDED"]
    states = [test_queued_resource.GONE, *one_life * lives, "ACTIVE"]
    cloud.reply(test_queued_resource.RESOURCE, *states)
    cloud.reply(test_queued_resource.NODE, "READY")
    cloud.reply("on_host.sh state", "ended 0")
    cloud.reply("storage ls", DENIED)
    flags = [*test_queued_resource.FLAGS, "--skip_prepare"]
    result = cloud.run(test_queued_resource.SCRIPT, "run", *flags)
    assert "goes on from checkpoint unknown" in result.stderr
    assert len(cloud.calls(test_queued_resource.CREATE)) == lives + 1


@pytest.mark.parametrize("command", ["create", "run"])
@pytest.mark.parametrize("launcher", [test_gke, test_queued_resource])
def test_bucket_and_account_are_looked_for_once(cloud, launcher, command):
    dry = cloud.run(launcher.SCRIPT, command, *launcher.FLAGS, "--dry_run").stdout
    assert dry.count("storage buckets describe") == 1
    assert dry.count("service-accounts describe") == 1
