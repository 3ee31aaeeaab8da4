"""Tests of the digests and links of a model directory."""

import os

import pytest

from bert_jax import digests
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop import files


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "a.txt").write_text("first")
    (path / "b.safetensors").write_text("second")
    digests.write_sums(path)
    return path


def test_the_card_and_a_directory_without_digests_may_change(directory):
    (directory / "README.md").write_text("A card.")
    files.verify_digests(directory)
    (directory / "SHA256SUMS").unlink()
    (directory / "a.txt").write_text("changed")
    files.verify_digests(directory)


@pytest.mark.parametrize("space", [" ", "  ", " *", "  ./", " *./"])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_lines_of_other_tools_are_accepted(directory, space, end, case):
    (directory / "onnx").mkdir()
    (directory / "onnx" / "model.safetensors").write_text("needs no digest")
    sums = directory / "SHA256SUMS"
    lines = [line.split() for line in sums.read_text().splitlines()]
    lines = [case(digest) + space + name for digest, name in lines]
    sums.write_bytes(((end or "\n").join(lines) + end).encode())
    files.verify_digests(directory)
    (directory / "a.txt").write_text("changed")
    with pytest.raises(CorruptError, match="a.txt does not match its digest"):
        files.verify_digests(directory)


def link_outside(sums):
    sums.with_name("a.txt").unlink()
    sums.with_name("a.txt").symlink_to("/dev/zero")
    sums.write_text("?" * 64 + "  a.txt\n")  # any 64 characters count as a digest


def make_a_pipe(sums):
    sums.with_name("a.txt").unlink()
    os.mkfifo(sums.with_name("a.txt"))


def lose_the_link(sums):
    sums.unlink()
    sums.symlink_to("nothing")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda sums: sums.write_bytes(sums.read_bytes().replace(b"\n", b"\x0e", 1)),
            "SHA256SUMS is corrupt; download it again, or remove SHA256",
        ),
        (
            lambda sums: sums.with_name("b.safetensors").write_text("Second"),
            "b.safetensors does not match its digest",
        ),
        (lambda sums: sums.with_name("a.txt").unlink(), "a.txt is missing"),
        (
            lambda sums: sums.write_text("0" * 64 + "  ../outside\n"),
            "SHA256SUMS is corrupt",
        ),
        (link_outside, "a.txt is a link to /dev/zero, outside of its directory"),
        (make_a_pipe, "a.txt is missing"),
        (
            lambda sums: sums.write_text(sums.read_text().splitlines()[0] + "\n"),
            "b.safetensors has no digest",
        ),
        (lose_the_link, "SHA256SUMS is missing"),
    ],
)
def test_corruption_is_one_line(directory, harm, message):
    harm(directory / "SHA256SUMS")
    with pytest.raises(ConfigError, match=message) as error:
        files.verify_digests(directory)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["../b.txt", "/etc/hostname", "c/../../b.txt"])
def test_nested_name_that_points_outside_is_rejected(directory, tmp_path, name):
    (directory / "c").mkdir()
    (directory / "c" / "d.txt").write_text("third")
    found = files.nested_file(directory, "c/d.txt")
    assert found.read_text() == "third"
    for open_file, outside in (
        (files.nested_file, name),
        (files.file, name),
        (files.file, "c/d.txt"),
    ):
        with pytest.raises(ConfigError, match="points outside of its directory"):
            open_file(directory, outside)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "d.txt").write_text("fourth")
    (directory / "e").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="e/d.txt is a link to .*elsewhere"):
        files.nested_file(directory, "e/d.txt")


def test_links_within_the_directory_are_followed_and_others_rejected(
    directory, tmp_path
):
    (directory / "c.txt").symlink_to("a.txt")
    assert files.file(directory, "c.txt").read_text() == "first"
    (tmp_path / "outside").write_text("")
    (directory / "d.txt").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="d.txt is a link to .*outside"):
        files.file(directory, "d.txt")


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
