"""The restart loop: which exit codes, how often, and what a signal does."""

import signal
import time

import pytest

# A "training" that takes its exit codes and checkpoints from a script of lines: each
# start consumes one, `CODE [CHECKPOINT]`.
TRAIN = r"""#!/usr/bin/env bash
workdir=${1#--workdir=}
echo started >>"$workdir/starts"
read -r code step < <(sed -n "$(wc -l <"$workdir/starts")p" "$workdir/plan")
[[ -z $step ]] || mkdir -p "$workdir/checkpoints/$step"
exit "${code:-0}"
"""

# One that answers SIGTERM and SIGINT as training does, after a moment.
STEADY = r"""#!/usr/bin/env bash
workdir=${1#--workdir=}
trap 'sleep 0.3; echo "saved on TERM" >>"$workdir/said"; exit 75' TERM
trap 'echo "saved on INT" >>"$workdir/said"; exit 75' INT
echo started >>"$workdir/starts"
while :; do sleep 0.05; done
"""


@pytest.fixture(autouse=True)
def default_sighup():
    """Gives child processes the default action of SIGHUP, also under nohup.

    A handler is reset to the default when a child starts; an ignored signal is not.
    """
    previous = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.fixture
def train(cloud, tmp_path):
    cloud.add_program("fake-train", TRAIN)
    workdir = tmp_path / "work dir"
    workdir.mkdir()

    def run(*plan: str, code: int, **env: str):
        (workdir / "plan").write_text("\n".join(plan) + "\n")
        result = cloud.run(
            "restart.sh", "fake-train", f"--workdir={workdir}", code=code, **env
        )
        return len((workdir / "starts").read_text().split()), result.stderr

    return run


@pytest.mark.parametrize("code", [0, 1, 2, 77, 78, 137])
def test_other_codes_end_it_at_once_and_are_explained(train, code):
    starts, said = train(str(code), "0", code=code)
    assert starts == 1
    words = {0: "done", 2: "config", 77: "diverged", 78: "damaged", 137: "memory"}
    assert f"exit code {code}: " in said
    assert words.get(code, "traceback") in said


def test_codes_75_and_76_are_followed_by_a_restart(train):
    starts, said = train("75 10", "76 20", "0 30", code=0)
    assert starts == 3
    assert "newest checkpoint 10" in said and "newest checkpoint 20" in said


def test_three_restarts_without_a_newer_checkpoint_end_it_with_the_code(train):
    starts, said = train("75 10", "76", "76", "76", "76", "0", code=76)
    assert starts == 5  # the first left a checkpoint; three restarts after the second
    assert "3 restarts in a row brought no checkpoint newer than 10" in said


def test_a_newer_checkpoint_resets_the_count(train):
    plan = ["76 10", "76", "76", "76 20", "76", "76", "76 30", "0"]
    assert train(*plan, code=0)[0] == len(plan)


def test_a_checkpoint_under_way_or_an_older_one_is_no_progress(train):
    plan = ["76 10", "76 20.orbax-checkpoint-tmp-3", "76 9", "76 8", "76 7", "0"]
    assert train(*plan, code=76)[0] == 5


def test_steps_are_compared_as_numbers(train):
    plan = ["76 9", "76 10", "76", "76 100", "76", "76", "0"]
    assert train(*plan, code=0)[0] == len(plan)


def test_the_limit_is_a_setting(train):
    assert train("76", "76", "0", code=76, BERT_JAX_MAX_STALLED="1")[0] == 2


def test_pauses_double_up_to_the_limit_and_are_shortened_by_no_more_than_half(train):
    delays = {"BERT_JAX_FIRST_DELAY": "0.1", "BERT_JAX_MAX_DELAY": "0.4"}
    plan = ["76"] * 4
    _, said = train(*plan, code=76, **delays)
    pauses = [float(line.split(" in ")[1].split()[0]) for line in said.splitlines()[:3]]
    for pause, most in zip(pauses, (0.1, 0.2, 0.4), strict=True):
        assert most / 2 <= pause <= most


@pytest.mark.parametrize(
    "name, passed_on", [("TERM", "TERM"), ("INT", "INT"), ("HUP", "TERM")]
)
def test_a_signal_is_passed_on_awaited_and_not_followed_by_a_restart(
    cloud, tmp_path, name, passed_on
):
    cloud.add_program("fake-train", STEADY)
    process = cloud.start("restart.sh", "fake-train", f"--workdir={tmp_path}")
    _wait_for(tmp_path / "starts")
    process.send_signal(getattr(signal, f"SIG{name}"))
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 75
    assert (tmp_path / "said").read_text() == f"saved on {passed_on}\n"
    assert (tmp_path / "starts").read_text() == "started\n"
    assert "not started again" in said


def test_under_nohup_training_goes_on_when_the_terminal_is_gone(cloud, tmp_path):
    cloud.add_program("fake-train", STEADY)
    cloud.add_program("restart", '#!/bin/sh\nexec nohup launch/restart.sh "$@"\n')
    process = cloud.start(
        "../../fakes/bin/restart", "fake-train", f"--workdir={tmp_path}"
    )
    _wait_for(tmp_path / "starts")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None and not (tmp_path / "said").exists()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert (tmp_path / "said").read_text() == "saved on TERM\n"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_the_pause_ends_it(cloud, tmp_path, sent):
    cloud.add_program("fake-train", TRAIN)
    (tmp_path / "plan").write_text("76\n0\n")
    process = cloud.start(
        "restart.sh",
        "fake-train",
        f"--workdir={tmp_path}",
        BERT_JAX_FIRST_DELAY="60",
        BERT_JAX_MAX_DELAY="60",
    )
    _wait_for(tmp_path / "starts")
    time.sleep(0.3)
    process.send_signal(sent)
    process.communicate(timeout=60)
    assert process.returncode == 76
    assert (tmp_path / "starts").read_text() == "started\n"


def test_a_command_without_a_workdir_is_a_usage_error(cloud):
    result = cloud.run("restart.sh", "true", code=2)
    assert "--workdir" in result.stderr and result.stderr.count("\n") == 1


def test_a_setting_that_is_no_number_is_a_usage_error(train):
    with pytest.raises(FileNotFoundError):  # nothing was started
        train("0", code=2, BERT_JAX_FIRST_DELAY="soon")


def test_a_word_after_workdir_is_the_workdir(cloud, tmp_path):
    result = cloud.run("restart.sh", "false", "--workdir", str(tmp_path), code=1)
    assert "exit code 1" in result.stderr


def _wait_for(path) -> None:
    for _ in range(400):
        if path.exists() and path.stat().st_size:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} did not appear")
