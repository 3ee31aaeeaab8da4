"""What was written is told from what is there, a single bit included."""

import subprocess

import pytest

from bert_jax import digests


@pytest.fixture
def sealed(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b c").write_bytes(bytes(range(256)))
    (tmp_path / "later").write_bytes(b"")
    digests.seal(tmp_path, lambda name: name == "later")
    return tmp_path


def test_a_directory_as_it_was_written_has_no_damage(sealed):
    assert digests.damage(sealed) == []
    (sealed / "later").write_bytes(b"changed")  # it has no digest
    assert digests.damage(sealed) == []


def test_sha256sum_agrees(sealed):
    check = subprocess.run(
        ["sha256sum", "--check", "--strict", digests.SUMS_FILE],
        cwd=sealed,
        capture_output=True,
        text=True,
    )
    assert check.stdout == "a: OK\nsub/b c: OK\n" and check.returncode == 0


@pytest.mark.slow
def test_every_bit_counts(sealed):
    for name in ("a", "sub/b c", digests.SUMS_FILE):
        path = sealed / name
        content = path.read_bytes()
        for i in range(8 * len(content)):
            flipped = bytearray(content)
            flipped[i // 8] ^= 1 << i % 8
            path.write_bytes(flipped)
            assert digests.damage(sealed), (name, i)
        path.write_bytes(content)
    assert digests.damage(sealed) == []


@pytest.mark.parametrize("content", ["", "no digests\n", f"{'0' * 64}  ../outside\n"])
def test_sums_that_are_none_are_damage(sealed, content):
    (sealed / digests.SUMS_FILE).write_text(content)
    assert digests.damage(sealed) == ["SHA256SUMS is damaged"]


def test_what_is_gone_is_named(sealed):
    (sealed / "a").unlink()
    assert digests.damage(sealed) == ["a is missing"]
    (sealed / digests.SUMS_FILE).unlink()
    assert digests.damage(sealed) == ["SHA256SUMS is missing"]
