"""Tests of the digests and links of a model directory."""

import subprocess

import pytest

from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop import files


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "a.txt").write_text("first")
    (path / "b.txt").write_text("second")
    files.write_digests(path)
    return path


def test_digests_equal_those_of_sha256sum(directory):
    subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=directory, check=True
    )
    sums = subprocess.run(
        ["sha256sum", "--binary", "a.txt"], cwd=directory, capture_output=True
    ).stdout
    files.verify_digests(directory)
    for name in (b"a.txt", b"./a.txt"):
        text = sums.upper().replace(b"A.TXT", name)
        (directory / "SHA256SUMS").write_bytes(text)
        files.verify_digests(directory)


def test_changed_file_is_an_error(directory):
    (directory / "b.txt").write_text("Second")
    with pytest.raises(CorruptError, match="b.txt does not match its digest in"):
        files.verify_digests(directory)


def test_file_without_a_digest_may_change(directory):
    (directory / "README.md").write_text("A card.")
    files.verify_digests(directory)


def test_directory_without_digests_is_accepted(directory):
    (directory / "SHA256SUMS").unlink()
    (directory / "b.txt").write_text("Second")
    files.verify_digests(directory)


@pytest.mark.parametrize("name", ["../b.txt", "/etc/hostname", "c/b.txt"])
def test_name_that_points_outside_is_rejected(directory, name):
    with pytest.raises(ConfigError, match="points outside of its directory"):
        files.file(directory, name)


@pytest.mark.parametrize("name", ["../b.txt", "/etc/hostname", "c/../../b.txt"])
def test_nested_name_that_points_outside_is_rejected(directory, tmp_path, name):
    (directory / "c").mkdir()
    (directory / "c" / "d.txt").write_text("third")
    found = files.nested_file(directory, "c/d.txt")
    assert found.read_text() == "third"
    with pytest.raises(ConfigError, match="points outside of its directory"):
        files.nested_file(directory, name)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "d.txt").write_text("fourth")
    (directory / "e").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="e/d.txt is a link to .*elsewhere"):
        files.nested_file(directory, "e/d.txt")


def test_flipped_line_end_of_the_digests_is_corruption(directory):
    sums = directory / "SHA256SUMS"
    files.write_digests(directory)
    sums.write_bytes(sums.read_bytes().replace(b"\n", b"\x0e", 1))
    with pytest.raises(CorruptError, match="SHA256SUMS:1 is not a digest and a file"):
        files.verify_digests(directory)


def test_link_within_the_directory_is_followed(directory):
    (directory / "c.txt").symlink_to("a.txt")
    assert files.file(directory, "c.txt").read_text() == "first"


def test_link_that_points_outside_is_rejected(directory, tmp_path):
    (tmp_path / "outside").write_text("")
    (directory / "c.txt").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="c.txt is a link to .*outside"):
        files.file(directory, "c.txt")


def test_links_of_the_hugging_face_cache_are_accepted(tmp_path):
    blobs, snapshot = tmp_path / "m/blobs", tmp_path / "m/snapshots/1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "0").write_text("weights")
    (snapshot / "good").symlink_to("../../blobs/0")
    assert files.file(snapshot, "good").read_text() == "weights"
    (tmp_path / "m/refs").write_text("")
    (snapshot / "bad").symlink_to("../../refs")
    with pytest.raises(ConfigError, match="is a link"):
        files.file(snapshot, "bad")
    (tmp_path / "n").symlink_to(snapshot)  # a link to the snapshot
    assert files.file(tmp_path / "n", "good").read_text() == "weights"
