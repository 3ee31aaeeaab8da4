"""Flips bits in checkpoints: each is detected, or does not affect the state."""

import pathlib
import random
import shutil

import jax
import numpy as np
import pytest
from orbax.checkpoint.checkpoint_managers import LatestN

from bert_jax import digests
from bert_jax.checkpoint import integrity
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.phases import Position
from bert_jax.training import step as step_lib
from tests.commands import error_of, flip, run, run_well, small_run, write_text
from tests.conftest import make_config, use_mesh
from tests.runs import assert_same_bits, exact_lines

pytestmark = pytest.mark.slow
NUM_FLIPS = 120


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A workdir with one checkpoint, its config and its state."""
    workdir = tmp_path_factory.mktemp("workdir")
    config = make_config()
    use_mesh(1, 1, 1)
    _, init = step_lib.init_state(config)
    state = init()
    checkpoints = Checkpoints(str(workdir), LatestN(1))
    checkpoints.save(7, state, config, Position("corpus"))
    checkpoints.close()
    return workdir, init, state


def restored(workdir, init):
    checkpoints = Checkpoints(str(workdir))
    assert checkpoints.position(7, "corpus") == Position("corpus")
    return checkpoints.restore(7, jax.eval_shape(init), use_mesh(1, 1, 1))


def test_every_flip_is_detected_or_harmless(saved):
    workdir, init, state = saved
    directory = pathlib.Path(integrity.directory_of(str(workdir), 7))
    files = sorted(p for p in directory.rglob("*") if p.is_file() and p.stat().st_size)
    source = random.Random(0)
    harmless, detected = [], 0
    for i in range(NUM_FLIPS):
        path = files[i % len(files)]  # small files as often as large ones
        before = path.read_bytes()
        flip(path, source.randrange(8 * len(before)))
        problems = integrity.verify(str(workdir), 7)
        if problems:
            name = path.relative_to(directory).as_posix()
            assert name in problems[0] or name == digests.SUMS_FILE
            detected += 1
        else:
            # Files without a digest do not affect the restored state.
            harmless.append(path.name)
            found = jax.tree.leaves(restored(workdir, init))
            for a, b in zip(found, jax.tree.leaves(state), strict=True):
                np.testing.assert_array_equal(a, b)
        path.write_bytes(before)
    assert integrity.verify(str(workdir), 7) == []
    # A flip in a time of the metadata is harmless, one in its syntax is detected.
    marks = {integrity.STEP_METADATA, integrity.COMMIT_MARK}
    assert set(harmless) <= marks
    assert detected > NUM_FLIPS / 2


@pytest.mark.parametrize("fault", ["truncated", "empty", "missing"])
def test_every_file_must_be_complete(saved, fault):
    workdir, _, _ = saved
    directory = pathlib.Path(integrity.directory_of(str(workdir), 7))
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        before = path.read_bytes()
        if fault == "missing":
            path.unlink()
        else:
            path.write_bytes(
                before[: len(before) // 2] if fault == "truncated" else b""
            )
        is_mark = path.name == integrity.COMMIT_MARK
        assert bool(integrity.verify(str(workdir), 7)) != is_mark, path
        path.write_bytes(before)


def test_a_run_resumes_from_the_checkpoint_before(tmp_path):
    """If all are corrupt, the run does not start over."""
    straight, flipped = tmp_path / "straight", tmp_path / "flipped"
    write_text(tmp_path / "documents.txt")
    run_well("bert_jax.train", *small_run(tmp_path), f"--workdir={straight}")
    shutil.copytree(straight, flipped)
    newest = flipped / "checkpoints" / "60"
    data = max(newest.rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    flip(data, 8 * 1000 + 3)
    reading = run("bert_jax.evaluate", f"--workdir={flipped}")
    assert reading.returncode == 78 and "use --step=30" in reading.stderr
    arguments = [*small_run(tmp_path), f"--workdir={flipped}"]
    stdout = run_well("bert_jax.train", *arguments)
    assert "checkpoint 60 is corrupt" in stdout and "resuming at step 30" in stdout
    assert (flipped / "corrupt_checkpoints" / "60").is_dir()
    assert_same_bits(flipped, straight, 60)
    assert exact_lines(flipped) == exact_lines(straight)
    for step in ("30", "60"):
        flip(flipped / "checkpoints" / step / "SHA256SUMS", 100)
    assert "all 2 checkpoints" in error_of("bert_jax.train", *arguments, code=78)
