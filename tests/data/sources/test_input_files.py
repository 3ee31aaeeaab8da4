"""Tests of bert_jax.data.sources.input_files."""

import dataclasses
import json

import pytest

from bert_jax.data.sources import input_files, sources
from bert_jax.errors import ConfigError

FILE_KINDS = pytest.mark.parametrize(
    "kind", ["text", "files", "jsonl", "parquet", "wikiextractor"]
)


def write(path, text="One."):
    path.write_text(text)
    return path


@FILE_KINDS
def test_no_file_matches(tmp_path, kind):
    with pytest.raises(ConfigError, match=r"no file matches '.*/none\*"):
        input_files.find((f"{kind}:{tmp_path}/none*#text",))


@FILE_KINDS
def test_directory_instead_of_a_file_is_an_error(tmp_path, kind):
    with pytest.raises(ConfigError, match=rf"is a directory; .*{tmp_path}/\*\*/"):
        input_files.find(
            (f"{kind}:{tmp_path}" + "#text" * sources.KINDS[kind].has_field,)
        )


def test_directories_and_broken_links_beside_files_are_ignored(tmp_path):
    path = write(tmp_path / "a.txt")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    (found,) = input_files.find((f"text:{tmp_path}/*",))
    assert [file.path for file in found.files] == [str(path)]


@pytest.mark.parametrize("end", ["", "#"])
def test_json_lines_need_a_field(tmp_path, end):
    path = write(tmp_path / "x", "{}")
    with pytest.raises(ConfigError, match=f"write jsonl:{path}#text"):
        input_files.find((f"jsonl:{path}{end}",))


def test_embedded_and_tfds_sources_have_no_files(tmp_path):
    path = write(tmp_path / "x.txt")
    specs = ("embedded:", f"text:{path}", f"jsonl:{path}#a", "tfds:any#text")
    found = input_files.find(specs)
    assert [len(source.files) for source in found] == [0, 1, 1, 0]
    assert found[0].version and not found[3].version


def test_only_json_lines_and_parquet_have_a_field_in_their_pattern(tmp_path):
    """In the pattern of any other kind, # is part of the file name."""
    path = write(tmp_path / "c#.txt", "One.\nTwo.")
    (found,) = input_files.find((f"text:{path}",))
    assert found.text_bytes == 9 and found.kind.format == "text"
    (found,) = input_files.find((f"jsonl:{tmp_path}/c*.txt#a.b",))
    assert found.kind.format == "jsonl#a.b"
    (found,) = input_files.find((f"parquet:{tmp_path}/c*.txt#a.b",))
    assert found.kind.format == "parquet#a.b"


def test_total_bytes_of_sources(tmp_path):
    def total(*specs):
        return input_files.total_bytes(input_files.find(specs))

    for name, size in (("a.txt", 10), ("b.txt", 5)):
        write(tmp_path / name, "x" * size)
    text, jsonl = f"text:{tmp_path}/*.txt", f"jsonl:{tmp_path}/a.txt#text"
    assert total(text, "embedded:", jsonl) == 25
    (tmp_path / "a.txt.gz").write_bytes(b"x" * 10)
    assert total(f"files:{tmp_path}/*.gz") == 30
    assert total(text, "tfds:any#text") is None


def test_changed_share_counts_changed_and_removed_files(tmp_path):
    def found(*specs):
        return input_files.find(tuple(f"text:{tmp_path}/{spec}" for spec in specs))

    for name, size in (("a", 100), ("b", 300), ("c", 600)):
        (tmp_path / f"{name}.txt").write_text("x" * size)
    now = found("*.txt")
    before = json.loads(json.dumps([dataclasses.asdict(source) for source in now]))
    assert input_files.changed_share(before, now) == 0
    (tmp_path / "a.txt").write_text("x" * 200)
    assert input_files.changed_share(before, found("*.txt")) == 300 / 1200
    (tmp_path / "c.txt").unlink()
    assert input_files.changed_share(before, found("*.txt")) == 900 / 1200
    assert input_files.changed_share(before, found("[a-c].txt")) == 1
