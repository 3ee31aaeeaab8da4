"""Losses that are not finite: skipped, recorded, rolled back, and never saved."""

import json
import pathlib

import pytest

from tests.commands import run, run_well, small_run, write_text
from tests.runs import assert_same_bits, exact_lines, lines

pytestmark = pytest.mark.slow
TRAIN = "tests.faults.faulty_train"


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("text")
    write_text(directory / "documents.txt")
    return directory


def arguments(text: pathlib.Path, workdir: pathlib.Path, **guard) -> list[str]:
    changes = {f"guard.{name}": value for name, value in guard.items()}
    return [*small_run(text, **changes), f"--workdir={workdir}"]


def checkpoints(workdir: pathlib.Path) -> list[str]:
    directory = workdir / "checkpoints"
    return sorted(p.name for p in directory.iterdir() if p.name.isdigit())


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
    assert checkpoints(tmp_path) == ["30", "60"]


def test_a_run_that_diverges_ends_with_77_and_leaves_its_checkpoints(text, tmp_path):
    given = arguments(text, tmp_path, max_bad_steps=3)
    for _ in range(2):  # the same command does not help
        result = run(TRAIN, *given, POISON_BATCHES="35-")
        assert result.returncode == 77, result.stdout + result.stderr
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: the loss or the gradient was not finite in the")
        assert "up to step 38; all parameters are finite" in line
        assert checkpoints(tmp_path) == ["30"]
    verified = run_well("bert_jax.checkpoint", "verify", f"--workdir={tmp_path}")
    assert "sound" in verified
    assert {record["step"] for record in records(tmp_path)} >= {36, 37, 38}
    # The data is mended: the run goes on from what it had.
    assert "continuing at step 30" in run_well("bert_jax.train", *given)


def test_what_is_not_finite_from_the_start_saves_nothing(text, tmp_path):
    given = arguments(text, tmp_path, max_bad_steps=5, max_rollbacks=2)
    result = run(TRAIN, *given, POISON_BATCHES="0-")
    assert result.returncode == 77, result.stdout + result.stderr
    assert "in the last 5 steps, up to step 5" in result.stderr
    assert checkpoints(tmp_path) == []


def test_a_run_rolls_back_and_leaves_the_window_out(text, tmp_path):
    given = {"max_bad_steps": 3, "max_rollbacks": 1}
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    stdout = run_well(
        TRAIN, *arguments(text, straight, **given), POISON_BATCHES="35,36,37,38,39"
    )
    assert "back to step 30, leaving out the 8 batches since" in stdout
    # What was bad lies before the window's end; two more come once it is over.
    bad = [(record["step"], record["batch"]) for record in records(straight)]
    assert bad[:3] == [(36, 35), (37, 36), (38, 37)]
    assert bad[-2:] == [(31, 38), (32, 39)]
    assert checkpoints(straight) == ["30", "60"]
    # Step 31 took the batch after the window, and inspect_batch shows that one.
    looked = run_well(
        "bert_jax.inspect_batch", f"--workdir={straight}", "--step=31", "--rows=1"
    )
    config = small_run(text, **{"phases[0].num_steps": 100})
    told = run_well("bert_jax.inspect_batch", *config, "--step=39", "--rows=1")
    assert looked.splitlines()[3:] == told.splitlines()[3:]
    assert [line["step"] for line in lines(straight) if "loss" in line] == [
        10,
        20,
        30,
        40,
        50,
        60,
    ]
    # Killed after it went back, the run finds the same way again.
    result = run(
        TRAIN,
        *arguments(text, killed, **given),
        POISON_BATCHES="35,36,37,38,39",
        KILL_AT="45:SIGKILL",
    )
    assert result.returncode == -9
    run_well(TRAIN, *arguments(text, killed, **given), POISON_BATCHES="35,36,37,38,39")
    assert_same_bits(killed, straight, 60)
    assert exact_lines(killed) == exact_lines(straight)


def test_a_chip_that_computes_wrong_ends_the_run_with_78(text, tmp_path):
    given = arguments(text, tmp_path, replay_every_steps=40)
    result = run(TRAIN, *given, COMPUTE_WRONG="1")
    assert result.returncode == 78, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: step 40 taken twice gave other bits")
    assert checkpoints(tmp_path) == ["30"]


def test_more_divergence_than_rollbacks_ends_the_run(text, tmp_path):
    given = arguments(text, tmp_path, max_bad_steps=3, max_rollbacks=1)
    result = run(TRAIN, *given, POISON_BATCHES="35-")
    assert result.returncode == 77
    assert "back to step 30" in result.stdout and checkpoints(tmp_path) == ["30"]
