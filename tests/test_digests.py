"""Tests of writing and verifying SHA256SUMS."""

import pytest

from bert_jax import digests
from tests.commands import capture, flip


@pytest.fixture
def sealed(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b c").write_bytes(bytes(range(256)))
    (tmp_path / "later").write_bytes(b"")
    digests.write_sums(tmp_path, lambda name: name == "later")
    return tmp_path


def test_verify_accepts_an_unchanged_directory(sealed):
    assert digests.verify(sealed) == []
    (sealed / "later").write_bytes(b"changed")  # it has no digest
    assert digests.verify(sealed) == []


def test_sha256sum_verifies_the_sums(sealed):
    check = capture("sha256sum", "--check", "--strict", digests.SUMS_FILE, cwd=sealed)
    assert check.stdout == "a: OK\nsub/b c: OK\n" and check.returncode == 0


@pytest.mark.slow
def test_verify_detects_every_flipped_bit(sealed):
    for name in ("a", "sub/b c", digests.SUMS_FILE):
        path = sealed / name
        for i in range(8 * path.stat().st_size):
            flip(path, i)
            assert digests.verify(sealed), (name, i)
            flip(path, i)
    assert digests.verify(sealed) == []


@pytest.mark.parametrize("content", ["", "no digests\n", f"{'0' * 64}  ../outside\n"])
def test_verify_rejects_invalid_sums(sealed, content):
    (sealed / digests.SUMS_FILE).write_text(content)
    assert digests.verify(sealed) == ["SHA256SUMS is corrupt"]


def test_verify_names_missing_files(sealed):
    (sealed / "a").unlink()
    assert digests.verify(sealed) == ["a is missing"]
    (sealed / digests.SUMS_FILE).unlink()
    assert digests.verify(sealed) == ["SHA256SUMS is missing"]
