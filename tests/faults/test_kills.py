"""kill -9 at any moment: the same command goes on, to the same bits."""

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
# 50 at 1,500 steps were seen to pass as well, in 11 minutes.
NUM_KILLS = int(os.environ.get("KILLS", "20"))
LAST = 30 * NUM_KILLS


def arguments(text: pathlib.Path, workdir: pathlib.Path) -> list[str]:
    """Returns a run that spends much of its time saving."""
    changes = {
        "phases[0].num_steps": LAST,
        "checkpoint.every_steps": 5,
        "eval.every_steps": 500,
        "log_every_steps": 5,
    }
    return [*small_run(text, **changes), f"--workdir={workdir}"]


def newest(workdir: pathlib.Path) -> int:
    directory = workdir / "checkpoints"
    names = [p.name for p in directory.iterdir()] if directory.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=0)


def test_kills_change_no_bit(tmp_path):
    write_text(tmp_path / "documents.txt")
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    run_well("bert_jax.train", *arguments(tmp_path, straight))
    source = random.Random(0)
    places = []
    for i in range(NUM_KILLS):
        before = newest(killed)
        process = start("bert_jax.train", *arguments(tmp_path, killed))
        if i % 5:  # in its steps and saves; else wherever it is by then
            while newest(killed) == before and process.poll() is None:
                time.sleep(0.005)
            time.sleep(source.uniform(0.0, 0.5))
        else:
            time.sleep(source.uniform(0.5, 8.0))
        process.send_signal(signal.SIGKILL)
        stdout, stderr = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), stdout + stderr
        assert newest(killed) >= before
        places.append(newest(killed))
    assert len(set(places)) > NUM_KILLS / 3, places  # it was killed on its way
    run_well("bert_jax.train", *arguments(tmp_path, killed))
    assert_same_bits(killed, straight, LAST)
    assert exact_lines(killed) == exact_lines(straight)
    unfinished = [p for p in (killed / "checkpoints").iterdir() if "tmp" in p.name]
    assert not unfinished
    # A kill in the middle of a deletion leaves a part of an old one, which is put
    # aside; it has lost what makes a checkpoint count.
    for part in (killed / integrity.DAMAGED_DIRECTORY).glob("*"):
        assert not (part / integrity.STEP_METADATA).exists()
