"""Losses that are not finite: updates are skipped, recorded and rolled back."""

import json
import pathlib

import pytest

from bert_jax.checkpoint import integrity
from tests.commands import run, run_well, small_run
from tests.runs import assert_same_bits, exact_lines, lines

pytestmark = pytest.mark.slow
TRAIN = "tests.faults.faulty_train"


def arguments(text: pathlib.Path, workdir: pathlib.Path, **guard) -> list[str]:
    changes = {f"guard.{name}": value for name, value in guard.items()}
    return [*small_run(text, **changes), f"--workdir={workdir}"]


def records(workdir: pathlib.Path) -> list[dict]:
    texts = (workdir / "bad_steps.jsonl").read_text().splitlines()
    return [json.loads(text) for text in texts]


def test_one_bad_batch_is_skipped(text, tmp_path):
    stdout = run_well(TRAIN, *arguments(text, tmp_path), POISON_BATCHES="14")
    assert "step 15 not finite (loss nan" in stdout
    log = [line for line in lines(tmp_path) if "loss" in line]
    assert [line["bad_steps"] for line in log] == [0, 1, 0, 0, 0, 0]
    assert all(line["loss"] > 0 for line in log)
    (record,) = records(tmp_path)
    assert (record["step"], record["loss"]) == (15, "nan") and record["rows"]
    assert integrity.steps(str(tmp_path)) == [30, 60]


def test_a_run_that_diverges_ends_with_77_and_leaves_its_checkpoints(text, tmp_path):
    given = arguments(text, tmp_path, max_bad_steps=3)
    result = run(TRAIN, *given, POISON_BATCHES="35-")
    assert result.returncode == 77, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: the loss or the gradient was not finite in the")
    assert "up to step 38; all parameters are finite" in line
    assert integrity.steps(str(tmp_path)) == [30]
    assert integrity.verify(str(tmp_path), 30) == []
    assert {record["step"] for record in records(tmp_path)} >= {36, 37, 38}
    # With correct data, the run resumes.
    assert "resuming at step 30" in run_well("bert_jax.train", *given)


def test_two_rollbacks_around_a_corrupt_checkpoint_resume_bit_identically(
    text, tmp_path
):
    """The second rollback passes over checkpoint 40, which is corrupt, to 30.

    When it is killed after that and before the next save, the run has only checkpoint
    30, which was saved before the first rollback.
    """
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    faults = {"POISON_BATCHES": "35,36,37,53,54,55", "CORRUPT_CHECKPOINT": "40:2"}

    def given(workdir):
        values = small_run(
            text,
            **{
                "guard.max_bad_steps": 3,
                "guard.max_rollbacks": 2,
                "checkpoint.every_steps": 10,
                "checkpoint.keep": 10,
            },
        )
        return [*values, f"--workdir={workdir}"]

    stdout = run_well(TRAIN, *given(straight), **faults)
    assert "rolling back to step 30 and skipping the batches of the 8 steps" in stdout
    assert "checkpoint 40 is corrupt" in stdout
    # Step 31 takes the first batch after both windows, where all batches are finite.
    taken = [(record["step"], record["batch"]) for record in records(straight)]
    assert taken == [(36, 35), (37, 36), (38, 37), (46, 53), (47, 54), (48, 55)]
    shown = run_well(
        "bert_jax.inspect_batch", f"--workdir={straight}", "--step=31", "--rows=1"
    )
    config = small_run(text, **{"phases[0].num_steps": 100})
    expected = run_well("bert_jax.inspect_batch", *config, "--step=57", "--rows=1")
    assert shown.splitlines()[3:] == expected.splitlines()[3:]
    result = run(TRAIN, *given(killed), KILL_AT="35#3:SIGKILL", **faults)
    assert result.returncode == -9
    assert integrity.steps(str(killed)) == [10, 20, 30]
    run_well(TRAIN, *given(killed), POISON_BATCHES=faults["POISON_BATCHES"])
    assert_same_bits(killed, straight, 60)
    assert exact_lines(killed) == exact_lines(straight)
    assert records(killed) == records(straight)


def test_a_faulty_chip_ends_the_run_with_78(text, tmp_path):
    given = arguments(text, tmp_path, replay_every_steps=40)
    result = run(TRAIN, *given, COMPUTE_WRONG="1")
    assert result.returncode == 78, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: step 40 gave different bits when it was repeated")
    assert integrity.steps(str(tmp_path)) == [30]


def test_a_rollback_in_the_decay_of_a_budget_continues_the_checkpoints_plan(
    text, tmp_path
):
    changes = {
        "guard.max_bad_steps": 3,
        "guard.max_rollbacks": 1,
        "checkpoint.every_steps": 50,
        "log_every_steps": 2,
        "optimizer.schedule": "wsd",
        "budget_hours": 1.0,  # it ends at step 60, after a decay of 12 steps
    }
    given = [*small_run(text, **changes), f"--workdir={tmp_path}"]
    stdout = run_well(TRAIN, *given, POISON_BATCHES="54,55,56")
    assert "rolling back to step 50" in stdout
    log = [line for line in lines(tmp_path) if "loss" in line]
    rates = {line["step"]: line["learning_rate"] for line in log}
    for step in (46, 50, 52, 54, 60):
        decayed = (max(step - 48, 0) / 12) ** 0.5
        assert rates[step] == pytest.approx((1 - decayed) * rates[46], abs=1e-9), step
