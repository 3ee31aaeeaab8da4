"""A run on a queued Cloud TPU, against a fake gcloud."""

import shlex
import signal
import time

import pytest

from tests.launch.fakes import Answer, words_in_order

SCRIPT = "queued_resource.sh"
ACCOUNT = "bert-train@my-project-123.iam.gserviceaccount.com"
FLAGS = [
    "--name=bert-base",
    "--project=my-project-123",
    "--zone=us-central1-a",
    "--type=v5litepod-16",
    "--bucket=my-bucket",
    f"--service_account={ACCOUNT}",
    "--config=configs/base.py",
]
TRAIN_ARGS = ["--config.data.sources=('text:/a b/*.txt',)", "--config.seed=3"]
GONE = Answer(err="ERROR: (gcloud) NOT_FOUND: Resource was not found", code=1)
RESOURCE = "queued-resources describe .*value"
NODE = "tpu-vm describe"
CREATE = "queued-resources create"
DELETE = "queued-resources delete"
STATE = "on_host.sh state bert-jax-train"
PREPARED = "on_host.sh state bert-jax-prepare"


@pytest.fixture
def tpu(cloud):
    """A cloud that has no TPU yet, gives one when asked, and where all goes well."""
    cloud.reply(RESOURCE, GONE, "ACTIVE")
    cloud.reply(NODE, "READY")
    cloud.reply("on_host.sh state", "ended 0")
    return cloud


@pytest.fixture
def ready(tpu):
    """The same, with the TPU."""
    tpu.reply(RESOURCE, "ACTIVE")
    return tpu


def create_words(cloud):
    (words,) = cloud.calls(CREATE)
    return words


def test_a_dry_run_prints_what_the_real_one_does_and_does_nothing(tpu):
    args = ["run", *FLAGS, "--spot", "--external_ips"]
    dry = tpu.run(SCRIPT, *args, "--dry_run", "--", *TRAIN_ARGS)
    assert tpu.calls() == []
    tpu.run(SCRIPT, *args, "--", *TRAIN_ARGS)
    assert tpu.printed(dry.stdout) == tpu.calls()
    assert len(tpu.calls()) > 15


def test_the_machine_is_private_shielded_and_has_its_own_account(tpu):
    tpu.run(SCRIPT, "create", *FLAGS)
    words = create_words(tpu)
    assert f"--service-account={ACCOUNT}" in words
    assert {"--internal-ips", "--shielded-secure-boot"} <= set(words)
    assert "--runtime-version=v2-alpha-tpuv5-lite" in words
    assert not {"--spot", "--reserved"} & set(words)
    assert all("--tunnel-through-iap" in ssh for ssh in tpu.calls(" ssh "))


def test_flags_of_create(tpu):
    tpu.run(
        SCRIPT,
        "create",
        *FLAGS,
        "--spot",
        "--external_ips",
        "--network=net",
        "--subnetwork=sub",
        "--give_up_after=6h",
        "--runtime=v2-other",
    )
    words = set(create_words(tpu))
    assert {
        "--spot",
        "--network=net",
        "--subnetwork=sub",
        "--valid-until-duration=6h",
        "--runtime-version=v2-other",
    } <= words
    assert "--internal-ips" not in words


def test_a_reservation_is_used_where_it_is_asked_for(tpu):
    tpu.run(SCRIPT, "create", *FLAGS, "--reserved")
    words = create_words(tpu)
    assert "--reserved" in words and "--spot" not in words


def test_what_is_reserved_is_not_spot(tpu):
    said = tpu.run(SCRIPT, "run", *FLAGS, "--reserved", "--spot", code=2).stderr
    assert "--reserved and --spot" in said and said.count("\n") == 1
    assert tpu.calls() == []


@pytest.mark.parametrize(
    "kind, runtime",
    [
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-8", "v2-alpha-tpuv6e"),
        ("v5litepod-256", "v2-alpha-tpuv5-lite"),
        ("v2-8", "tpu-ubuntu2204-base"),
        ("v3-32", "tpu-ubuntu2204-base"),
        ("v4-8", "tpu-ubuntu2204-base"),
    ],
)
def test_the_software_goes_with_the_type(tpu, kind, runtime):
    tpu.run(SCRIPT, "create", *FLAGS, f"--type={kind}")
    assert f"--runtime-version={runtime}" in create_words(tpu)


def test_create_waits_in_the_queue(tpu):
    queue = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    tpu.reply(RESOURCE, GONE, *queue)
    tpu.reply(NODE, "CREATING", "READY")
    tpu.run(SCRIPT, "create", *FLAGS)
    assert len(tpu.calls(RESOURCE)) == 5


def test_what_is_there_is_not_made_again(ready):
    ready.run(SCRIPT, "create", *FLAGS)
    assert not ready.calls(CREATE)


def test_what_was_lost_is_deleted_and_made_again(tpu):
    tpu.reply(RESOURCE, "SUSPENDED", "ACTIVE")
    tpu.run(SCRIPT, "create", *FLAGS)
    assert words_in_order(tpu.calls(), DELETE, CREATE)


def test_a_request_that_fails_in_the_queue(tpu):
    tpu.reply(RESOURCE, GONE, "FAILED")
    assert "did not come up" in tpu.run(SCRIPT, "create", *FLAGS, code=69).stderr


def test_a_cloud_that_refuses_to_answer_is_not_asked_for_a_machine(tpu):
    tpu.reply(RESOURCE, Answer(err="ERROR: PERMISSION_DENIED", code=1))
    assert "PERMISSION_DENIED" in tpu.run(SCRIPT, "create", *FLAGS, code=72).stderr
    assert not tpu.calls(CREATE) and len(tpu.calls(RESOURCE)) == 1


def test_waiting_ends_at_the_deadline(tpu):
    tpu.reply(RESOURCE, GONE, "WAITING_FOR_RESOURCES")
    result = tpu.run(SCRIPT, "create", *FLAGS, "--give_up_after=1s", code=69)
    assert "within 1s" in result.stderr


def test_install_sends_the_last_commit_to_every_host(tpu):
    tpu.run(SCRIPT, "install", *FLAGS)
    calls = tpu.calls()
    assert words_in_order(
        calls, "git .*archive.* HEAD$", "scp .*--worker=all", "tar -xzf", "install my-b"
    )


def test_an_install_that_fails_for_a_moment_is_done_again(tpu):
    tpu.reply("on_host.sh install", Answer(code=100), Answer(code=255), "")
    result = tpu.run(SCRIPT, "install", *FLAGS)
    assert "install failed with 100: again in" in result.stderr
    assert len(tpu.calls("on_host.sh install")) == len(tpu.calls("scp")) == 3


@pytest.mark.parametrize("failing", ["scp", "tar -xzf", "on_host.sh install"])
def test_an_install_that_goes_on_failing_ends_with_its_code(tpu, failing):
    tpu.reply(failing, Answer(code=100))
    tpu.run(SCRIPT, "install", *FLAGS, code=100)
    assert len(tpu.calls(failing)) == 4
    assert failing == "on_host.sh install" or not tpu.calls("on_host.sh install")


def test_train_starts_on_every_host_with_the_arguments_intact(tpu):
    tpu.run(SCRIPT, "train", *FLAGS, "--", *TRAIN_ARGS)
    (words,) = tpu.calls("bert_jax.train")
    assert "--worker=all" in words
    (command,) = [w for w in words if w.startswith("--command=")]
    host_words = shlex.split(command.removeprefix("--command="))
    assert host_words[-6:] == [
        "bert_jax.train",
        "--workdir=/mnt/bert_jax/runs/bert-base",
        "--config=configs/base.py",
        "--config.data.corpus_dir=/mnt/bert_jax/corpora/base",
        *TRAIN_ARGS,
    ]
    assert "launch/restart.sh" in host_words


def test_prepare_runs_on_the_first_host_and_is_waited_for(ready):
    ready.reply(PREPARED, "running", "running", "ended 0")
    ready.run(SCRIPT, "prepare", *FLAGS)
    assert "--worker=0" in ready.calls("bert_jax.prepare")[0]
    assert len(ready.calls(PREPARED)) == 3


@pytest.mark.parametrize(
    "answers, code",
    [
        ("ended 0\nended 0", 0),
        ("ended 76\nended 77\nended 76", 77),
        ("ended 1\nended 76", 1),
        ("ended 75\nended 76", 76),
        ("stopped\nstopped", 75),
        ("stopped\nended 76", 76),
        ("SSH: Attempting to connect to worker 0...\nended 2", 2),
    ],
)
def test_wait_ends_with_the_code_of_the_first_cause(ready, answers, code):
    ready.reply(STATE, "running\nrunning", "running\nended 76", answers)
    result = ready.run(SCRIPT, "wait", *FLAGS, code=code)
    assert f"ended with {code}" in result.stderr
    assert len(ready.calls(STATE)) == 3


@pytest.mark.parametrize("command", ["prepare", "wait"])
def test_the_reason_of_a_failure_is_shown_before_its_code(ready, command):
    ready.reply("on_host.sh state", "ended 2")
    ready.reply("last_words", "a| ConfigError\nb| other\na| no field 'lr'\nSSH: bye")
    said = ready.run(SCRIPT, command, *FLAGS, code=2).stderr
    assert said.startswith("a| ConfigError\na| no field 'lr'\nlaunch: ")
    unit = "bert-jax-prepare" if command == "prepare" else "bert-jax-train"
    (words,) = ready.calls("last_words")
    assert any(word.endswith(f"last_words {unit} 2") for word in words)


def test_a_reason_that_cannot_be_read_changes_no_code(ready):
    ready.reply(STATE, "ended 77")
    ready.reply("last_words", Answer(code=255))
    said = ready.run(SCRIPT, "wait", *FLAGS, code=77).stderr
    assert "could not be read" in said and "diverged" in said


@pytest.mark.parametrize("state", ["ended 0", "stopped"])
def test_where_nothing_failed_no_log_is_shown(ready, state):
    ready.reply(STATE, state)
    ready.run(SCRIPT, "wait", *FLAGS, code=75 if state == "stopped" else 0)
    assert not ready.calls("last_words")


@pytest.mark.parametrize("state", ["SUSPENDING", "SUSPENDED", "FAILED"])
def test_a_preempted_request_ends_the_wait(tpu, state):
    tpu.reply(RESOURCE, "ACTIVE", state)
    tpu.reply(STATE, "running")
    assert "taken away" in tpu.run(SCRIPT, "wait", *FLAGS, code=69).stderr


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_a_preempted_node_ends_the_wait_though_its_request_is_active(ready, state):
    ready.reply(NODE, "READY", state)
    ready.reply(STATE, "running")
    assert "taken away" in ready.run(SCRIPT, "wait", *FLAGS, code=69).stderr


def test_hosts_that_do_not_answer_for_long_are_lost(ready):
    ready.reply(STATE, Answer(code=255))
    result = ready.run(SCRIPT, "wait", *FLAGS, code=69, BERT_JAX_MISSES="3")
    assert "3 times" in result.stderr and len(ready.calls(STATE)) == 3


def test_one_question_without_an_answer_is_no_loss(ready):
    ready.reply(STATE, Answer(code=255), "running", Answer(code=255), "ended 0")
    ready.run(SCRIPT, "wait", *FLAGS, BERT_JAX_MISSES="2")


def test_after_a_preemption_a_new_tpu_goes_on(tpu):
    tpu.reply(RESOURCE, GONE, *["ACTIVE"] * 3, "SUSPENDED", "SUSPENDED", "ACTIVE")
    tpu.reply(STATE, "running", "ended 0")
    result = tpu.run(SCRIPT, "run", *FLAGS)
    life = [CREATE, "scp", "bert_jax.prepare", "bert_jax.train"]
    assert words_in_order(
        tpu.calls(), *life, DELETE, *life, "storage rsync", DELETE + ".*--force"
    )
    assert len(tpu.calls(CREATE)) == 2
    assert "goes on from checkpoint none" in result.stderr


def test_rebooted_hosts_are_told_again_without_a_new_tpu(tpu):
    tpu.reply(STATE, "running\nabsent", "ended 0")
    tpu.run(SCRIPT, "run", *FLAGS)
    assert len(tpu.calls("bert_jax.train")) == 2
    assert len(tpu.calls(CREATE)) == 1


def test_training_that_its_machine_interrupted_goes_on(tpu):
    """A host that is shut down answers for a moment after training has saved."""
    tpu.reply(STATE, "ended 75\nended 75", "ended 0")
    said = tpu.run(SCRIPT, "run", *FLAGS).stderr
    assert "interrupted, and not by stop" in said
    assert len(tpu.calls("bert_jax.train")) == 2


def test_training_that_was_stopped_does_not(tpu):
    tpu.reply(STATE, "running", "stopped\nstopped")
    tpu.run(SCRIPT, "run", *FLAGS, code=75)
    assert len(tpu.calls("bert_jax.train")) == 1


def test_losses_without_a_newer_checkpoint_end_the_run(tpu):
    tpu.reply(RESOURCE, GONE, *["ACTIVE"] * 2, "SUSPENDED")
    tpu.reply("storage ls", "gs://my-bucket/runs/bert-base/checkpoints/500/")
    result = tpu.run(SCRIPT, "run", *FLAGS, code=69)
    assert "lost 4 times in a row with no checkpoint newer than 500" in result.stderr
    assert len(tpu.calls(CREATE)) == 4
    assert DELETE in " ".join(tpu.calls()[-1])


def test_a_newer_checkpoint_each_time_lets_it_go_on(tpu):
    steps = [f"gs://my-bucket/runs/bert-base/checkpoints/{n}00/" for n in range(1, 9)]
    lives = 7
    one_life = ["ACTIVE", "SUSPENDED", "SUSPENDED"]
    tpu.reply(RESOURCE, GONE, *one_life * lives, "ACTIVE")
    tpu.reply("storage ls", *steps)
    tpu.run(SCRIPT, "run", *FLAGS, "--skip_prepare")
    assert len(tpu.calls(CREATE)) == lives + 1


def test_a_code_that_no_restart_helps_ends_the_run_and_the_costs(tpu):
    tpu.reply(STATE, "ended 77")
    result = tpu.run(SCRIPT, "run", *FLAGS, code=77)
    assert "diverged" in result.stderr
    assert len(tpu.calls(CREATE)) == 1
    assert words_in_order(tpu.calls(), STATE, "save_log", "storage rsync", DELETE)


def test_a_failed_command_ends_the_run_and_the_costs(tpu):
    tpu.reply("on_host.sh install", Answer(err="no network", code=1))
    tpu.run(SCRIPT, "run", *FLAGS, code=1)
    assert not tpu.calls("bert_jax.train")
    assert words_in_order(tpu.calls(), "install", DELETE)


def test_a_failed_command_of_a_second_call_leaves_training_alone(ready):
    """It goes on since the first one, which was interrupted."""
    ready.reply("on_host.sh install", Answer(err="no network", code=255))
    ready.reply(STATE, "running")
    result = ready.run(SCRIPT, "run", *FLAGS, code=255)
    assert "training may be going on there: nothing is deleted" in result.stderr
    assert not ready.calls(DELETE)


NO_ANSWER = Answer(err="connection timed out", code=255)


def test_hosts_that_do_not_answer_are_not_deleted_since_they_may_train(ready):
    """They were there before this call, so they may train since an earlier one."""
    ready.reply(" ssh ", NO_ANSWER)
    result = ready.run(SCRIPT, "run", *FLAGS, code=69, BERT_JAX_MISSES="2")
    assert "training may be going on there" in result.stderr
    assert not ready.calls(DELETE)


def test_hosts_that_were_told_to_train_and_answer_no_more_are_not_deleted(tpu):
    tpu.reply(STATE, NO_ANSWER)
    limits = {"BERT_JAX_MISSES": "2", "BERT_JAX_MAX_STALLED": "1"}
    result = tpu.run(SCRIPT, "run", *FLAGS, code=69, **limits)
    assert "cost money" in result.stderr
    assert len(tpu.calls("bert_jax.train")) == 2
    assert not tpu.calls(DELETE)


def test_a_cloud_that_refuses_to_say_more_has_nothing_deleted(ready):
    denied = Answer(err="ERROR: PERMISSION_DENIED", code=1)
    ready.reply(RESOURCE, "ACTIVE", "ACTIVE", denied)
    ready.reply("on_host.sh install", Answer(code=1))
    ready.run(SCRIPT, "run", *FLAGS, code=1)
    assert not ready.calls(DELETE)


def test_new_machines_that_never_answer_do_not_train_and_are_deleted(tpu):
    tpu.reply(" ssh ", NO_ANSWER)
    tpu.run(SCRIPT, "run", *FLAGS, code=69, BERT_JAX_MISSES="2")
    assert len(tpu.calls(DELETE)) == 1


def test_where_a_host_says_that_training_ended_it_has_ended(ready):
    ready.reply("on_host.sh install", Answer(code=1))
    ready.reply(STATE, Answer("ended 76", code=255))
    ready.run(SCRIPT, "run", *FLAGS, code=1)
    assert len(ready.calls(DELETE)) == 1


def test_a_cloud_that_does_not_answer_for_long_has_nothing_deleted(tpu):
    broken = Answer(err="ERROR: 503", code=1)
    tpu.reply(RESOURCE, broken)
    result = tpu.run(SCRIPT, "run", *FLAGS, code=72, BERT_JAX_MISSES="3")
    assert len(tpu.calls(RESOURCE)) == 3
    assert "training may be going on there" in result.stderr
    assert not tpu.calls(f"{CREATE}|{DELETE}")


def test_one_answer_that_does_not_come_changes_nothing(tpu):
    tpu.reply(RESOURCE, Answer(err="ERROR: 503", code=1), GONE, "ACTIVE")
    tpu.run(SCRIPT, "create", *FLAGS)
    assert len(tpu.calls(CREATE)) == 1


def test_a_command_that_failed_since_the_machine_went_away_is_a_loss(tpu):
    tpu.reply(RESOURCE, GONE, "ACTIVE", "SUSPENDED", "SUSPENDED", "ACTIVE")
    tpu.reply("on_host.sh install", *[Answer(code=255)] * 4, "")
    tpu.run(SCRIPT, "run", *FLAGS)
    assert len(tpu.calls(CREATE)) == 2


def test_create_that_fails_is_not_tried_again(tpu):
    tpu.reply(CREATE, Answer(err="ERROR: quota", code=1))
    assert "quota" in tpu.run(SCRIPT, "run", *FLAGS, code=1).stderr
    assert len(tpu.calls(CREATE)) == 1


def test_keep_leaves_the_machine_and_says_how_to_end_it(tpu):
    result = tpu.run(SCRIPT, "run", *FLAGS, "--keep")
    assert not tpu.calls(DELETE)
    assert "delete" in result.stderr and "--name=bert-base" in result.stderr


def test_an_interrupted_run_says_what_goes_on_costing(tpu):
    tpu.reply(STATE, "running")
    process = tpu.start(SCRIPT, "run", *FLAGS)
    for _ in range(500):
        if tpu.calls(STATE):
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    tpu.reply(STATE, "ended 0")  # bash acts on a signal when its command has ended
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 143
    assert "cost money" in said
    assert not tpu.calls(DELETE)


def test_status_logs_stop_collect_delete(ready):
    ready.reply(
        "storage ls", "gs://b/runs/x/checkpoints/90/\ngs://b/x/checkpoints/100/"
    )
    assert "newest checkpoint: 100" in ready.run(SCRIPT, "status", *FLAGS).stdout
    ready.run(SCRIPT, "logs", *FLAGS, "--follow")
    assert ready.calls("on_host.sh log follow")
    ready.run(SCRIPT, "stop", *FLAGS)
    assert "--worker=all" in ready.calls("on_host.sh stop bert-jax-train")[0]
    ready.run(SCRIPT, "collect", *FLAGS)
    assert "--exclude=^checkpoints/.*" in ready.calls("storage rsync")[0]
    ready.run(SCRIPT, "collect", *FLAGS, "--checkpoints")
    assert not any("--exclude" in word for word in ready.calls("storage rsync")[1])
    ready.run(SCRIPT, "delete", *FLAGS)
    assert "--force" in ready.calls(DELETE)[0]


@pytest.mark.parametrize("command", "install train prepare logs stop".split())
def test_a_failed_gcloud_fails_the_subcommand(tpu, command):
    tpu.reply("queued-resources (ssh|scp)", Answer(err="broken", code=1))
    tpu.run(SCRIPT, command, *FLAGS, code=1)


@pytest.mark.parametrize("command", ["create", "run"])
def test_without_its_account_nothing_is_asked_for(tpu, command):
    tpu.reply("service-accounts describe", Answer(err="ERROR: 404", code=1))
    result = tpu.run(SCRIPT, command, *FLAGS, code=2)
    assert "--service_account=" in result.stderr and "ERROR: 404" in result.stderr
    assert not tpu.calls("queued-resources")


def test_a_cloud_that_does_not_answer_for_a_moment_is_no_mistake(ready):
    ready.reply("service-accounts describe", Answer(err="ERROR: 503", code=1))
    result = ready.run(SCRIPT, "create", *FLAGS)
    assert (
        "--service_account=" in result.stderr and "was not looked at" in result.stderr
    )


@pytest.mark.parametrize("command", "status collect delete".split())
def test_a_failed_gcloud_fails_what_needs_no_host(tpu, command):
    tpu.reply(".", Answer(err="broken", code=1))
    tpu.run(SCRIPT, command, *FLAGS, code=1)


BAD_FLAGS = [
    "--name=Bert",
    "--name=1bert",
    "--name=bert-",
    "--name=bert;rm",
    "--name=" + "b" * 63,
    "--name=",
    "--project=my_project",
    "--zone=us-central1",
    "--type=v5litepod",
    "--type=v5litepod-16 --spot",
    "--type=v3p-8",
    "--type=v5-8",
    "--type=v6p-8",
    "--type=v4litepod-8",
    "--type=v5p-0",
    "--type=v7-8",
    "--bucket=gs://my-bucket",
    "--bucket=My",
    "--service_account=me@gmail.com",
    "--service_account=123-compute@developer.gserviceaccount.com",
    "--config=base",
    "--config=../base.py",
    "--config=configs/nosuch.py",
    "--workdir=/runs/x",
    "--workdir=runs/../../x",
    "--workdir=gs://b/x",
    "--corpus_dir=a b",
    "--runtime=$(id)",
    "--give_up_after=soon",
    "--network=a/b",
    "--nmae=x",
    "--spot=yes",
    "--zone",
    "bert",
]


@pytest.mark.parametrize("flag", BAD_FLAGS)
def test_a_mistake_is_one_line_and_code_2_before_anything_is_done(tpu, flag):
    result = tpu.run(SCRIPT, "run", *FLAGS, flag, code=2)
    assert result.stderr.count("\n") == 1 and result.stdout == ""
    assert tpu.calls() == []


def test_v5e_has_another_name_in_the_api(tpu):
    said = tpu.run(SCRIPT, "create", *FLAGS, "--type=v5e-256", code=2).stderr
    assert said.endswith("give --type=v5litepod-256\n") and said.count("\n") == 1


@pytest.mark.parametrize("left_out", range(len(FLAGS)))
def test_a_flag_left_out_is_named_with_an_example(tpu, left_out):
    flags = FLAGS[:left_out] + FLAGS[left_out + 1 :]
    name = FLAGS[left_out].split("=")[0]
    said = tpu.run(SCRIPT, "create", *flags, code=2).stderr
    assert f"{name} is needed, for example {name}=" in said
    assert tpu.calls() == []


@pytest.mark.parametrize(
    "argument",
    [
        "--workdir=/x",
        "--config=configs/tiny.py",
        "--config.data.corpus_dir=/x",
        "--hf_token=secret",
        "--config.api_key=secret",
        "--config.wandb.access_token=secret",
        "--Password=secret",
        "--config.data.token=secret",
        "--config.data.sources=jsonl:https://me:secret@host/a.jsonl",
        "--config.seed=1\n2",
    ],
)
def test_what_train_may_not_be_given(tpu, argument):
    result = tpu.run(SCRIPT, "train", *FLAGS, "--", argument, code=2)
    assert "secret\n" not in result.stderr.replace("a secret", "")
    assert tpu.calls() == []


def test_tokenizer_flags_are_no_secrets(tpu):
    tpu.run(SCRIPT, "train", *FLAGS, "--", "--config.tokenizer.vocab_size=100")


def test_help_names_every_subcommand_and_flag(tpu):
    told = tpu.run(SCRIPT, "--help").stdout
    for (
        word
    ) in "create install prepare train wait status logs stop collect delete".split():
        assert f"\n  {word} " in told
    for flag in FLAGS:
        assert flag.split("=")[0] + "=" in told
    assert tpu.run(SCRIPT, "train", "--help").stdout == told


@pytest.mark.parametrize("args", [[], ["reate"], ["--name=x"], ["a b"]])
def test_without_a_subcommand_it_lists_them(tpu, args):
    assert "create, install" in tpu.run(SCRIPT, *args, code=2).stderr
