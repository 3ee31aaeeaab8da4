"""Tests of bert_jax.small_files."""

import pytest

from bert_jax import small_files
from bert_jax.errors import ConfigError


def test_a_written_object_is_read(tmp_path):
    small_files.write_json(tmp_path / "a.json", {"a": ["\u00e9", 1.5]})
    assert small_files.read_json(tmp_path / "a.json") == {"a": ["\u00e9", 1.5]}


def test_a_large_file_is_rejected(tmp_path):
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(small_files.MAX_FILE_BYTES + 1)
    with pytest.raises(ConfigError, match="a.json is larger than 64 MiB"):
        small_files.read_json(path)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\udcff", "[" * 100_000])
def test_file_that_is_not_a_json_object_is_rejected(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError, match="config.json is not a JSON object"):
        small_files.read_json(path)
