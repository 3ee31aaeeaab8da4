"""A file of results is whole or not there, and never in the place of the input."""

import pytest

from bert_jax import cli
from bert_jax.errors import ConfigError


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        with cli.replacing(path) as tmp:
            tmp.write_text("half")
            raise RuntimeError
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    with cli.replacing(path) as tmp:
        tmp.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "name, message",
    [
        ("nowhere/a.npz", "in a directory that does not exist"),
        ("input.txt", "is --input; give another file"),
        ("directory", "is a directory; give a file"),
        ("/proc/a.jsonl", r"=/proc/a.jsonl cannot be written \("),
    ],
)
def test_outputs_that_cannot_be(name, message, tmp_path):
    (tmp_path / "directory").mkdir()
    with pytest.raises(ConfigError, match=message):
        cli.check(tmp_path / name, str(tmp_path / "input.txt"))
