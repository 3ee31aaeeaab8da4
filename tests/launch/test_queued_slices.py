"""Several slices of a queued Cloud TPU, and slices that gcloud does not reach."""

import pytest

from tests.launch import test_queued_resource
from tests.launch.fakes import Answer
from tests.launch.test_queued_resource import SCRIPT, STATE

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
