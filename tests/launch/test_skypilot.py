"""A run as a SkyPilot managed job, against a fake sky; and its YAML, part by part.

Fields and types are those of sky/utils/schemas.py of SkyPilot 0.14.1.
"""

import json
import subprocess

import pytest
import yaml

from tests.commands import ROOT
from tests.launch.fakes import Answer, words_in_order

SCRIPT = "skypilot.sh"
FLAGS = [
    "--name=bert-base",
    "--type=tpu-v5litepod-16",
    "--infra=gcp/us-central1",
    "--bucket=my-bucket",
    "--config=configs/base.py",
]
NO_JOBS = Answer(err="sky.exceptions: No in-progress managed jobs.", code=1)
TASK = {"workdir": str, "setup": str, "run": str, "resources": dict, "envs": dict}
RESOURCES = {"accelerators": str, "use_spot": bool, "job_recovery": dict}
JOB_RECOVERY = {
    "strategy": str,
    "max_restarts_on_errors": int,
    "recover_on_exit_codes": list,
}


@pytest.fixture
def task():
    return yaml.safe_load((ROOT / "launch" / "skypilot.yaml").read_text())


def test_a_dry_run_prints_what_the_real_one_does_and_does_nothing(cloud):
    args = ["run", *FLAGS]
    end = ["--", "--config.data.sources=('text:/a b/*.txt',)"]
    dry = cloud.run(SCRIPT, *args, "--dry_run", *end)
    assert cloud.calls() == []
    cloud.run(SCRIPT, *args, *end)
    assert cloud.printed(dry.stdout) == cloud.calls()
    assert words_in_order(
        cloud.calls(),
        "jobs queue",
        "jobs launch",
        "jobs logs",
        "storage rsync",
        "jobs cancel",
    )


def test_train_names_the_machines_and_the_run(cloud):
    cloud.run(SCRIPT, "train", *FLAGS, "--on_demand", "--skip_prepare")
    (words,) = cloud.calls("jobs launch")
    assert {
        "--name=bert-base",
        "--gpus=tpu-v5litepod-16",
        "--infra=gcp/us-central1",
        "--no-use-spot",
        "--config=gcp.remote_identity=SERVICE_ACCOUNT",
        "--env=BERT_JAX_WORKDIR=/mnt/bert_jax/runs/bert-base",
        "--env=BERT_JAX_PREPARE=no",
    } <= set(words)
    assert words[-1] == str(cloud.clone / "launch" / "skypilot.yaml")


def jobs(*names, status="RUNNING"):
    """What `sky jobs queue --output=json` prints: a record a job, with indent."""
    return records(*((7, name, status) for name in names))


def records(*jobs):
    fields = ("job_id", "job_name", "status")
    more = {"metadata": {"status": "none"}, "pool": None}
    return json.dumps(
        [dict(zip(fields, job, strict=True)) | more for job in jobs], indent=2
    )


def test_a_job_that_has_not_ended_is_followed_and_not_begun_again(cloud):
    cloud.reply("jobs queue", jobs("bert-large", "bert-base"))
    result = cloud.run(SCRIPT, "run", *FLAGS)
    assert "is there already" in result.stderr
    assert not cloud.calls("jobs launch")
    assert words_in_order(cloud.calls(), "jobs queue .*--skip-finished", "jobs logs")


@pytest.mark.parametrize(
    "answer",
    [
        jobs("bert-base-2", "my-bert-base"),
        NO_JOBS,
    ],
)
def test_other_jobs_or_none_do_not_stop_one(cloud, answer):
    cloud.reply("jobs queue", answer)
    cloud.run(SCRIPT, "train", *FLAGS)
    assert len(cloud.calls("jobs launch")) == 1


def test_nothing_is_submitted_where_the_queue_does_not_answer(cloud):
    cloud.reply("jobs queue", Answer(err="the server cannot be reached", code=1))
    assert "cannot be reached" in cloud.run(SCRIPT, "run", *FLAGS, code=1).stderr
    assert not cloud.calls("jobs launch|jobs cancel")


def test_a_failed_job_is_collected_and_cancelled(cloud):
    cloud.reply("jobs logs", Answer(code=100))
    cloud.run(SCRIPT, "run", *FLAGS, code=100)
    assert words_in_order(cloud.calls(), "storage rsync", "jobs cancel")


def test_a_log_that_breaks_off_is_followed_again_while_the_job_is_there(cloud):
    failed = jobs("bert-base", status="FAILED")
    cloud.reply("jobs queue", "[]", jobs("bert-base"), jobs("bert-base"), failed)
    cloud.reply("jobs logs", Answer(code=1))
    said = cloud.run(SCRIPT, "run", *FLAGS, code=100).stderr
    assert "broke off with 1" in said
    assert len(cloud.calls("jobs logs")) == 3
    assert words_in_order(cloud.calls(), *["jobs logs"] * 3, "storage rsync", "cancel")


@pytest.mark.parametrize(
    "status, code",
    [
        ("SUCCEEDED", 0),
        ("FAILED", 100),
        ("FAILED_NO_RESOURCE", 100),
        ("CANCELLED", 103),
    ],
)
def test_where_the_log_breaks_off_the_status_of_the_job_decides(cloud, status, code):
    cloud.reply("jobs logs", Answer(code=1))
    cloud.reply(
        "jobs queue", "I wake the controller\n" + jobs("x", "bert-base", status=status)
    )
    cloud.run(SCRIPT, "wait", *FLAGS, code=code)
    assert (
        len(cloud.calls("jobs queue --refresh")) == len(cloud.calls("jobs logs")) == 1
    )


def test_of_several_jobs_of_the_name_the_newest_is_meant(cloud):
    cloud.reply("jobs logs", Answer(code=1))
    old, new = (3, "bert-base", "FAILED"), (12, "bert-base", "SUCCEEDED")
    cloud.reply("jobs queue", records(old, new, (13, "bert-large", "FAILED")))
    cloud.run(SCRIPT, "wait", *FLAGS)


@pytest.mark.parametrize("answer", ["[]", NO_JOBS])
def test_where_nobody_knows_the_job_the_code_of_its_log_stays(cloud, answer):
    cloud.reply("jobs logs", Answer(code=102))
    cloud.reply("jobs queue", answer)
    cloud.run(SCRIPT, "wait", *FLAGS, code=102)


def test_spot_is_asked_for_unless_on_demand_is(cloud):
    assert "asks for Spot unless --on_demand" in cloud.run(SCRIPT, "--help").stdout
    cloud.run(SCRIPT, "train", *FLAGS)
    (words,) = cloud.calls("jobs launch")
    assert "--use-spot" in words and "--no-use-spot" not in words


def test_a_queue_that_does_not_answer_has_nothing_cancelled(cloud):
    cloud.reply("jobs queue", "[]", Answer(err="connection refused", code=1))
    cloud.reply("jobs logs", Answer(code=1))
    said = cloud.run(SCRIPT, "run", *FLAGS, code=72, BERT_JAX_MISSES="3").stderr
    assert "did not answer 3 times" in said and "cost money" in said
    assert len(cloud.calls("jobs logs")) == 3
    assert not cloud.calls("jobs cancel|storage rsync")


def test_misses_are_counted_in_a_row(cloud):
    miss = Answer(err="connection refused", code=1)
    failed = jobs("bert-base", status="FAILED")
    cloud.reply("jobs queue", miss, jobs("bert-base"), miss, failed)
    cloud.reply("jobs logs", Answer(code=1))
    cloud.run(SCRIPT, "wait", *FLAGS, code=100, BERT_JAX_MISSES="2")
    assert len(cloud.calls("jobs logs")) == 4


def test_what_could_not_be_launched_is_not_waited_for(cloud):
    cloud.reply("jobs launch", Answer(code=1))
    cloud.run(SCRIPT, "run", *FLAGS, code=1)
    assert not cloud.calls("jobs logs")


def test_status_logs_delete(cloud):
    assert "checkpoint: none" in cloud.run(SCRIPT, "status", *FLAGS).stdout
    cloud.run(SCRIPT, "logs", *FLAGS)
    assert "--no-follow" in cloud.calls("jobs logs")[0]
    cloud.run(SCRIPT, "delete", *FLAGS)
    assert cloud.calls("jobs cancel --name=bert-base --yes")


@pytest.mark.parametrize("command", "train logs delete collect status".split())
def test_a_failed_command_fails_the_subcommand(cloud, command):
    cloud.reply(".", Answer(err="broken", code=1))
    cloud.run(SCRIPT, command, *FLAGS, code=1)


@pytest.mark.parametrize(
    "flag",
    [
        "--name=B",
        "--type=H100:8",
        "--type=tpu-v5e-8",
        "--infra=aws",
        "--bucket=gs://b",
        "--spot",
    ],
)
def test_a_mistake_is_one_line_and_code_2(cloud, flag):
    result = cloud.run(SCRIPT, "run", *FLAGS, flag, code=2)
    assert result.stderr.count("\n") == 1
    assert cloud.calls() == []


def test_the_task_has_published_fields_only(task):
    for fields, allowed in (
        (task, TASK),
        (task["resources"], RESOURCES),
        (task["resources"]["job_recovery"], JOB_RECOVERY),
    ):
        assert {name: type(value) for name, value in fields.items()} == allowed
    assert all(isinstance(v, str | None) for v in task["envs"].values())
    recovery = task["resources"]["job_recovery"]
    assert recovery["strategy"] in ("FAILOVER", "EAGER_NEXT_REGION")
    assert recovery["max_restarts_on_errors"] == 0
    assert recovery["recover_on_exit_codes"] == [75]


def test_every_variable_that_the_launcher_sets_is_declared(cloud, task):
    cloud.run(SCRIPT, "train", *FLAGS, "--skip_prepare", "--", "--config.seed=1")
    (words,) = cloud.calls("jobs launch")
    given = {w.split("=")[1] for w in words if w.startswith("--env=")}
    assert given == set(task["envs"])


@pytest.fixture
def host(cloud, task, tmp_path):
    """A host whose `run` script can be run, with an empty corpus_dir."""
    cloud.corpus = tmp_path / "corpus"
    cloud.corpus.mkdir()
    python = cloud.clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(cloud.fakes / "bin" / "sky")  # a fake: it writes its words down
    cloud.reply("mountpoint", "")

    def run_script(**env):
        cloud.run(
            SCRIPT, "train", *FLAGS, "--", "--config.data.sources=('text:/a b/*',)"
        )
        (words,) = cloud.calls("jobs launch")
        given = dict(w.split("=", 2)[1:] for w in words if w.startswith("--env="))
        given |= {"BERT_JAX_CORPUS_DIR": str(cloud.corpus), "BERT_JAX_PREPARE": "yes"}
        return subprocess.run(
            ["bash", "-c", task["run"]],
            cwd=cloud.clone,
            env=cloud.env | given | env,
            capture_output=True,
            text=True,
            timeout=60,
        )

    cloud.run_script = run_script
    return cloud


@pytest.mark.parametrize("rank, prepared", [("0", 1), ("1", 0)])
def test_the_run_script(host, rank, prepared):
    """One host makes the corpus, all train, and arguments with spaces arrive."""
    (host.corpus / "manifest.json").write_text("{}")
    assert host.run_script(SKYPILOT_NODE_RANK=rank).returncode == 0
    (train,) = host.calls("-m bert_jax.train")
    assert train[3:] == [
        "--workdir=/mnt/bert_jax/runs/bert-base",
        "--config=configs/base.py",
        f"--config.data.corpus_dir={host.corpus}",
        "--config.data.sources=('text:/a b/*',)",
    ]
    assert len(host.calls("-m bert_jax.prepare")) == prepared


def test_a_corpus_that_nobody_makes_is_not_waited_for(host):
    host.run_script(SKYPILOT_NODE_RANK="1", BERT_JAX_PREPARE="no")
    assert len(host.calls("-m bert_jax.train")) == 1


def test_a_corpus_that_does_not_come_is_not_waited_for_without_end(host):
    result = host.run_script(SKYPILOT_NODE_RANK="1", BERT_JAX_PREPARE_SECONDS="0")
    assert result.returncode == 1
    assert "corpus/manifest.json is not there after" in result.stderr
    assert not host.calls("-m bert_jax.train")
