"""Tests of bert_jax.checkpoint.integrity."""

import pathlib

import pytest

from bert_jax import storage
from bert_jax.checkpoint import integrity
from bert_jax.errors import ConfigError, CorruptError


def make(workdir, *steps) -> None:
    """Writes directories that have the layout of checkpoints."""
    for step in steps:
        directory = pathlib.Path(integrity.directory_of(str(workdir), step))
        (directory / "state").mkdir(parents=True)
        (directory / "state" / "data").write_bytes(b"weights %d" % step)
        (directory / integrity.STEP_METADATA).write_text("{}")
        integrity.seal(directory)
        (directory / "state" / integrity.COMMIT_MARK).touch()


def corrupt(workdir, step) -> None:
    directory = pathlib.Path(integrity.directory_of(str(workdir), step))
    (directory / "state" / "data").write_bytes(b"weightz %d" % step)


def test_recover_finds_the_newest_valid_one_and_moves_corrupt_ones(tmp_path, capsys):
    make(tmp_path, 5, 10, 20, 30)
    corrupt(tmp_path, 20)
    corrupt(tmp_path, 30)
    corrupt(tmp_path, 5)  # older checkpoints are not verified
    found = []

    def on_found(step):
        found.append((step, integrity.steps(str(tmp_path))))

    assert integrity.recover(str(tmp_path), on_found) == 10
    assert found == [(10, [5, 10, 20, 30])]  # before anything is moved
    assert integrity.steps(str(tmp_path)) == [5, 10]
    moved_to = tmp_path / integrity.CORRUPT_DIRECTORY
    assert sorted(path.name for path in moved_to.iterdir()) == ["20", "30"]
    assert capsys.readouterr().out.splitlines()[0] == (
        "checkpoint 30 is corrupt (state/data does not match its digest): moved to"
        f" {moved_to}/30, resuming from step 10"
    )
    # The step is saved again, and corrupted again.
    make(tmp_path, 20)
    corrupt(tmp_path, 20)
    assert integrity.recover(str(tmp_path)) == 10
    assert sorted(p.name for p in moved_to.iterdir()) == ["20", "20-2", "30"]


def test_a_run_does_not_start_over_if_all_are_corrupt(tmp_path):
    make(tmp_path, 10, 20)
    corrupt(tmp_path, 10)
    (pathlib.Path(integrity.directory_of(str(tmp_path), 20)) / "SHA256SUMS").unlink()
    for _ in range(2):  # the first call moves nothing
        with pytest.raises(
            CorruptError, match=r"all 2 checkpoints are corrupt \(20: SHA256SUMS is"
        ):
            integrity.recover(str(tmp_path))
    assert integrity.steps(str(tmp_path)) == [10, 20]


def test_check_names_the_newest_valid_step(tmp_path):
    make(tmp_path, 10, 20)
    remedy = "use /a{b}/run@"
    integrity.check(str(tmp_path), 20, remedy)
    corrupt(tmp_path, 20)
    with pytest.raises(CorruptError, match="20 is corrupt: state/data .*/a{b}/run@10"):
        integrity.check(str(tmp_path), 20, remedy)
    corrupt(tmp_path, 10)
    with pytest.raises(CorruptError, match="restore it from a backup"):
        integrity.check(str(tmp_path), 20, remedy)


def test_a_file_without_a_digest_is_an_error(tmp_path):
    """Orbax would read it, also through a link that leads out of the checkpoint."""
    make(tmp_path, 10)
    (tmp_path / "secret").write_text("secret")
    directory = pathlib.Path(integrity.directory_of(str(tmp_path), 10))
    assert integrity.verify(str(tmp_path), 10) == []
    (directory / "state" / "more").symlink_to(tmp_path / "secret")
    problems = ["state/more has no digest"]
    assert integrity.verify(str(tmp_path), 10) == problems
    (directory / "state" / "more").unlink()
    (directory / "state" / "more").symlink_to(tmp_path)
    assert integrity.verify(str(tmp_path), 10) == problems


def test_files_that_orbax_writes_last_have_no_digest_but_are_required(tmp_path):
    make(tmp_path, 10)
    sums = pathlib.Path(integrity.directory_of(str(tmp_path), 10)) / "SHA256SUMS"
    (line,) = sums.read_text().splitlines()
    assert line.endswith("  state/data")
    metadata = sums.with_name(integrity.STEP_METADATA)
    metadata.write_text('{"item')
    (problem,) = integrity.verify(str(tmp_path), 10)
    assert problem == "_CHECKPOINT_METADATA is missing or corrupt"


def test_a_checkpoint_that_may_not_be_read_is_not_corrupt(tmp_path, bucket):
    make(tmp_path, 10)
    storage.upload(str(tmp_path), "gs://b/run")
    storage.write(f"gs://b/run/checkpoints/10/{integrity.COMMIT_MARK}", b"")
    bucket.faults = {"/download/.*_CHECKPOINT_METADATA": [403] * 9}
    with pytest.raises(ConfigError, match="permission denied") as caught:
        integrity.recover("gs://b/run")
    assert caught.value.exit_code == 2
    bucket.faults = {}
    assert integrity.recover("gs://b/run") == 10


def test_older_checkpoints_without_readable_metadata_are_moved(tmp_path, capsys):
    make(tmp_path, 10, 20, 30)
    directory = pathlib.Path(integrity.directory_of(str(tmp_path), 10))
    (directory / integrity.STEP_METADATA).write_text('{"item')
    assert integrity.recover(str(tmp_path)) == 30
    assert integrity.steps(str(tmp_path)) == [20, 30]
    printed = capsys.readouterr().out
    assert "checkpoint 10 is corrupt (_CHECKPOINT_METADATA is missing" in printed
    # Orbax was killed when it had deleted the files at the top of a checkpoint.
    directory = pathlib.Path(integrity.directory_of(str(tmp_path), 20))
    for path in filter(pathlib.Path.is_file, directory.iterdir()):
        path.unlink()
    (directory.parent / "15").symlink_to("elsewhere")  # by the user, so it is moved
    assert integrity.recover(str(tmp_path)) == 30
    assert "checkpoint 15 is corrupt" in capsys.readouterr().out
    assert integrity.recover(str(tmp_path)) == 30
    assert not directory.exists() and not capsys.readouterr().out
    moved = (tmp_path / integrity.CORRUPT_DIRECTORY).iterdir()
    assert sorted(path.name for path in moved) == ["10", "15"]
