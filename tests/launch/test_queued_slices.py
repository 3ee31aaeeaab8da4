"""Several slices of a queued Cloud TPU, and slices that gcloud does not reach."""

import pytest

from tests.launch import test_queued_resource
from tests.launch.fakes import Answer, words_in_order
from tests.launch.test_queued_resource import CREATE, DELETE, NODE, SCRIPT, STATE

FLAGS = [*test_queued_resource.FLAGS, "--slices=2"]
tpu = test_queued_resource.tpu
ready = test_queued_resource.ready
LEFT_OUT = "WARNING: Could not prepare all 2 nodes, attempting to ssh into the rest."


@pytest.mark.parametrize("command", ["install", "train", "logs", "stop"])
def test_a_tpu_that_gcloud_leaves_out_fails_the_subcommand(ready, command):
    ready.reply("queued-resources (ssh|scp)", Answer(err=LEFT_OUT))
    said = ready.run(SCRIPT, command, *test_queued_resource.FLAGS, code=1).stderr
    assert LEFT_OUT in said


def test_a_tpu_that_is_left_out_has_not_said_that_training_ended(ready):
    ready.reply(STATE, Answer("ended 0", err=LEFT_OUT), "ended 0\nended 77")
    ready.run(SCRIPT, "wait", *test_queued_resource.FLAGS, code=77)


def test_output_and_code_of_what_gcloud_reaches_stay(ready):
    ready.reply("on_host.sh log", Answer("step 1", err="Connecting", code=5))
    result = ready.run(SCRIPT, "logs", *test_queued_resource.FLAGS, code=5)
    assert (result.stdout, result.stderr) == ("step 1\n", "Connecting\n")


SLOW = r"""#!/usr/bin/env bash
echo Connecting >&2
for ((i = 0; i < 50; i++)); do
  [[ ! -e $FAKES/seen ]] || exit 0
  sleep 0.1
done
exit 9
"""


def test_what_gcloud_says_arrives_while_it_goes_on(ready):
    ready.add_program("gcloud", SLOW)
    process = ready.start(SCRIPT, "logs", *test_queued_resource.FLAGS, "--follow")
    assert process.stderr.readline() == "Connecting\n"
    (ready.fakes / "seen").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_slices_are_asked_for_together(tpu):
    tpu.run(SCRIPT, "create", *FLAGS)
    (words,) = tpu.calls(CREATE)
    assert {"--node-count=2", "--node-prefix=bert-base"} <= set(words)
    assert not [word for word in words if word.startswith("--node-id")]
    described = [words[5] for words in tpu.calls(NODE)]
    assert described == ["bert-base-0", "bert-base-1"]


def test_one_slice_is_asked_for_by_its_name(tpu):
    tpu.run(SCRIPT, "create", *test_queued_resource.FLAGS)
    (words,) = tpu.calls(CREATE)
    assert "--node-id=bert-base" in words
    assert not [word for word in words if word.startswith(("--node-c", "--node-p"))]
    assert [words[5] for words in tpu.calls(NODE)] == ["bert-base"]


def test_create_waits_for_every_slice(tpu):
    tpu.reply(NODE + " bert-base-1", "CREATING", "CREATING", "READY")
    tpu.run(SCRIPT, "create", *FLAGS)
    assert len(tpu.calls(NODE + " bert-base-1")) == 3


def test_a_run_of_two_slices(tpu):
    dry = tpu.run(SCRIPT, "run", *FLAGS, "--dry_run")
    tpu.run(SCRIPT, "run", *FLAGS)
    calls = tpu.calls()
    assert tpu.printed(dry.stdout) == calls
    life = [CREATE, " scp ", "install", "bert_jax.prepare", "bert_jax.train", STATE]
    assert words_in_order(
        calls, *life, "save_log", "storage rsync", DELETE + ".*--force"
    )
    assert len(tpu.calls(DELETE)) == 1  # the request, with all of its TPUs
    for words in tpu.calls(" (ssh|scp) "):
        place = {"--node=all", "--worker=all"}
        if "bert-jax-prepare" in " ".join(words):
            place = {"--node=0", "--worker=0"}
        assert place <= set(words)


def test_the_log_is_that_of_the_first_host_of_the_first_slice(ready):
    ready.run(SCRIPT, "logs", *FLAGS)
    (words,) = ready.calls("on_host.sh log")
    assert {"--node=0", "--worker=0"} <= set(words)


@pytest.mark.parametrize("answers, code", [("ended 76\nended 1", 1), ("ended 0", 0)])
def test_codes_of_all_slices_are_weighed(ready, answers, code):
    ready.reply(STATE, "running\nended 76", answers)
    ready.run(SCRIPT, "wait", *FLAGS, code=code)


def test_a_lost_slice_is_asked_for_anew_with_the_others(tpu):
    states = ["READY", "READY", "PREEMPTED", "PREEMPTED", "READY"]
    tpu.reply(NODE + " bert-base-1", *states)
    tpu.reply(STATE, "running", "ended 0")
    tpu.run(SCRIPT, "run", *FLAGS, "--skip_prepare")
    life = [CREATE, "bert_jax.train"]
    assert words_in_order(tpu.calls(), *life, DELETE, *life, DELETE)
    assert len(tpu.calls(CREATE)) == 2


def test_a_slice_that_nobody_knows_of_is_not_waited_for_without_end(ready):
    ready.reply(NODE + " bert-base-0", Answer(err="ERROR: 503", code=1))
    ready.reply(NODE + " bert-base-1", "CREATING")
    said = ready.run(SCRIPT, "wait", *FLAGS, code=69, BERT_JAX_MISSES="2").stderr
    assert "bert-base was unknown" in said


def test_rebooted_hosts_of_one_slice_are_told_to_train_again(tpu):
    tpu.reply(STATE, "running\nabsent", "ended 0")
    tpu.run(SCRIPT, "run", *FLAGS)
    assert len(tpu.calls("bert_jax.train")) == 2 and len(tpu.calls(CREATE)) == 1


@pytest.mark.parametrize(
    "flag",
    [
        "--slices=0",
        "--slices=100",
        "--slices=two",
        "--type=v3-32",
        "--name=" + "b" * 61,
    ],
)
def test_slices_that_cannot_be(tpu, flag):
    said = tpu.run(SCRIPT, "run", *FLAGS, flag, code=2).stderr
    assert said.count("\n") == 1 and flag.removeprefix("--").split("=")[1] in said
    assert tpu.calls() == []
