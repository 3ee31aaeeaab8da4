"""Sound checkpoints are found, damaged ones put aside, and no run begins anew alone."""

import pytest

from bert_jax.checkpoint import integrity
from bert_jax.errors import CorruptError


def make(workdir, *steps) -> None:
    """Writes what has the form of checkpoints."""
    for step in steps:
        directory = integrity.directory_of(str(workdir), step)
        (directory / "state").mkdir(parents=True)
        (directory / "state" / "data").write_bytes(b"weights %d" % step)
        (directory / integrity.STEP_METADATA).write_text("{}")
        integrity.seal(directory)
        (directory / "state" / integrity.COMMIT_MARK).touch()


def damage(workdir, step) -> None:
    directory = integrity.directory_of(str(workdir), step)
    (directory / "state" / "data").write_bytes(b"weightz %d" % step)


def test_the_newest_sound_one_is_found_and_damaged_ones_are_put_aside(tmp_path):
    make(tmp_path, 5, 10, 20, 30)
    damage(tmp_path, 20)
    damage(tmp_path, 30)
    damage(tmp_path, 5)  # not newer: nobody asks
    said = []
    found = []

    def on_found(step):
        found.append((step, integrity.steps(str(tmp_path))))

    assert integrity.recover(str(tmp_path), said.append, on_found) == 10
    assert found == [(10, [5, 10, 20, 30])]  # before any is moved
    assert integrity.steps(str(tmp_path)) == [5, 10]
    put_aside = tmp_path / integrity.DAMAGED_DIRECTORY
    assert sorted(path.name for path in put_aside.iterdir()) == ["20", "30"]
    assert said[0] == (
        "checkpoint 30 is damaged (state/data does not match its digest): moved to"
        f" {put_aside}/30, going on from step 10"
    )
    # The step comes again, and is damaged again.
    make(tmp_path, 20)
    damage(tmp_path, 20)
    assert integrity.recover(str(tmp_path), said.append) == 10
    assert sorted(p.name for p in put_aside.iterdir()) == ["20", "20-2", "30"]


def test_where_all_is_sound_nothing_is_said(tmp_path):
    assert integrity.recover(str(tmp_path), pytest.fail) == 0
    make(tmp_path, 10, 20)
    assert integrity.recover(str(tmp_path), pytest.fail) == 20


def test_no_run_begins_anew_by_itself(tmp_path):
    make(tmp_path, 10, 20)
    damage(tmp_path, 10)
    (integrity.directory_of(str(tmp_path), 20) / "SHA256SUMS").unlink()
    for _ in range(2):  # nothing was moved the first time
        with pytest.raises(
            CorruptError, match=r"none of 2 checkpoints is sound \(20: SHA256SUMS is"
        ):
            integrity.recover(str(tmp_path), pytest.fail)
    assert CorruptError.exit_code == 78


def test_who_only_reads_is_told_of_another_step(tmp_path):
    make(tmp_path, 10, 20)
    remedy = "give --step={}"
    integrity.check(str(tmp_path), 20, remedy)
    damage(tmp_path, 20)
    with pytest.raises(CorruptError, match="20 is damaged: state/data .*--step=10"):
        integrity.check(str(tmp_path), 20, remedy)
    damage(tmp_path, 10)
    with pytest.raises(CorruptError, match="restore it from a copy"):
        integrity.check(str(tmp_path), 20, remedy)


def test_what_nobody_wrote_there_is_damage(tmp_path):
    """Orbax would read it: a link that leads out is the way to another file."""
    make(tmp_path, 10)
    (tmp_path / "secret").write_text("secret")
    directory = integrity.directory_of(str(tmp_path), 10)
    assert integrity.damage(str(tmp_path), 10) == []
    (directory / "state" / "more").symlink_to(tmp_path / "secret")
    wrong = ["state/more has no digest"]
    assert integrity.damage(str(tmp_path), 10) == wrong
    (directory / "state" / "more").unlink()
    (directory / "state" / "more").symlink_to(tmp_path)
    assert integrity.damage(str(tmp_path), 10) == wrong


def test_what_orbax_writes_last_has_no_digest_but_has_to_be_there(tmp_path):
    make(tmp_path, 10)
    sums = integrity.directory_of(str(tmp_path), 10) / "SHA256SUMS"
    assert (
        sums.read_text().endswith("  state/data\n")
        and sums.read_text().count("\n") == 1
    )
    metadata = sums.with_name(integrity.STEP_METADATA)
    metadata.write_text('{"item')
    (wrong,) = integrity.damage(str(tmp_path), 10)
    assert wrong == "_CHECKPOINT_METADATA is missing or damaged"


def test_older_ones_that_orbax_would_trip_over_are_put_aside_as_well(tmp_path):
    make(tmp_path, 10, 20, 30)
    directory = integrity.directory_of(str(tmp_path), 10)
    (directory / integrity.STEP_METADATA).write_text('{"item')
    said = []
    assert integrity.recover(str(tmp_path), said.append) == 30
    assert integrity.steps(str(tmp_path)) == [20, 30]
    assert "checkpoint 10 is damaged (_CHECKPOINT_METADATA is missing" in said[0]
