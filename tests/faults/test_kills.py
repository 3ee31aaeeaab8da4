"""Kills runs by SIGKILL at random times; they must resume bit-identically."""

import os
import pathlib
import random
import signal
import time

import pytest

from bert_jax.checkpoint import integrity
from tests.commands import run_well, small_run, start, write_text
from tests.runs import assert_same_bits, exact_lines

pytestmark = pytest.mark.slow
# KILLS=50, with 1,500 steps, passed as well, in 11 minutes.
NUM_KILLS = int(os.environ.get("KILLS", "4"))
LAST = 30 * NUM_KILLS


def arguments(text: pathlib.Path, workdir: pathlib.Path) -> list[str]:
    """Returns the arguments of a run that spends much of its time saving."""
    changes = {
        "phases[0].num_steps": LAST,
        "checkpoint.every_steps": 5,
        "eval.every_steps": 500,
        "log_every_steps": 5,
    }
    return [*small_run(text, **changes), f"--workdir={workdir}"]


def newest(workdir: pathlib.Path) -> int:
    return max(integrity.steps(str(workdir)), default=0)


def test_kills_change_no_bit(tmp_path):
    write_text(tmp_path / "documents.txt")
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    run_well("bert_jax.train", *arguments(tmp_path, straight))
    source = random.Random(0)
    steps = []
    for i in range(NUM_KILLS):
        before = newest(killed)
        process = start("bert_jax.train", *arguments(tmp_path, killed))
        if i % 5:  # during steps and saves, otherwise at any time after the start
            while newest(killed) == before and process.poll() is None:
                time.sleep(0.005)
            time.sleep(source.uniform(0.0, 0.5))
        else:
            time.sleep(source.uniform(0.5, 8.0))
        process.send_signal(signal.SIGKILL)
        stdout, stderr = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), stdout + stderr
        assert newest(killed) >= before
        steps.append(newest(killed))
    assert len(set(steps)) > NUM_KILLS / 3, steps  # kills were spread over the run
    run_well("bert_jax.train", *arguments(tmp_path, killed))
    assert_same_bits(killed, straight, LAST)
    assert exact_lines(killed) == exact_lines(straight)
    unfinished = [p for p in (killed / "checkpoints").iterdir() if "tmp" in p.name]
    assert not unfinished
    # A kill during a deletion leaves a part of an old checkpoint, without the file that
    # commits it. Recovery moves it.
    for part in (killed / integrity.CORRUPT_DIRECTORY).glob("*"):
        assert not (part / integrity.STEP_METADATA).exists()
