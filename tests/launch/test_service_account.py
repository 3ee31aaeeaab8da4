"""The account and the bucket, against a fake gcloud."""

import pytest

from tests.launch.fakes import Answer

SCRIPT = "service_account.sh"
FLAGS = ["--project=my-project-123", "--bucket=my-bucket", "--region=us-central1"]
MEMBER = "--member=serviceAccount:bert-train@my-project-123.iam.gserviceaccount.com"
GONE = Answer(err="ERROR: NOT_FOUND", code=1)


@pytest.fixture
def project(cloud):
    cloud.reply("describe", GONE)
    return cloud


def test_a_dry_run_prints_what_the_real_one_does_and_does_nothing(project):
    dry = project.run(SCRIPT, *FLAGS, "--dry_run")
    assert project.calls() == []
    project.run(SCRIPT, *FLAGS)
    assert project.printed(dry.stdout) == project.calls()


def test_the_bucket_is_private_and_renames_folders_in_one_step(project):
    project.run(SCRIPT, *FLAGS)
    (words,) = project.calls("buckets create")
    assert {
        "gs://my-bucket",
        "--location=us-central1",
        "--uniform-bucket-level-access",
        "--enable-hierarchical-namespace",
        "--public-access-prevention",
    } <= set(words)


def test_the_account_gets_three_roles_and_no_key(project):
    project.run(SCRIPT, *FLAGS)
    granted = [
        (words[1:3], [w for w in words if w.startswith("--role=")])
        for words in project.calls("add-iam-policy-binding")
    ]
    assert granted == [
        (["storage", "buckets"], ["--role=roles/storage.objectUser"]),
        (["projects", "add-iam-policy-binding"], ["--role=roles/logging.logWriter"]),
        (
            ["projects", "add-iam-policy-binding"],
            ["--role=roles/monitoring.metricWriter"],
        ),
    ]
    assert all(MEMBER in words for words in project.calls("add-iam-policy-binding"))
    assert not project.calls("keys")


def test_what_is_there_is_not_made_again(cloud):
    cloud.reply("service-accounts describe", "bert-train@x")
    cloud.reply("buckets describe", "my-bucket", "True")
    cloud.run(SCRIPT, *FLAGS)
    assert not cloud.calls(" create ")
    assert len(cloud.calls("add-iam-policy-binding")) == 3


def test_a_bucket_without_folders_is_refused(cloud):
    cloud.reply("buckets describe", "my-bucket", "")
    assert "hierarchical" in cloud.run(SCRIPT, *FLAGS, code=2).stderr
    assert not cloud.calls("add-iam-policy-binding")


@pytest.mark.parametrize("step", ["accounts create", "buckets create", "projects add"])
def test_a_failed_command_ends_it(project, step):
    project.reply(step, Answer(err="denied", code=1))
    project.run(SCRIPT, *FLAGS, code=1)
    assert step in " ".join(project.calls()[-1])


@pytest.mark.parametrize(
    "flag", ["--project=P", "--bucket=b/c", "--region=us", "--name=a", "--zone=x", "x"]
)
def test_a_mistake_is_one_line_and_code_2(project, flag):
    result = project.run(SCRIPT, *FLAGS, flag, code=2)
    assert result.stderr.count("\n") == 1
    assert project.calls() == []
