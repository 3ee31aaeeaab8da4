"""Tests of bert_jax.data.corpus.input_groups."""

import itertools
import os
import re
from collections import Counter

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.data.corpus import input_groups
from bert_jax.data.sources import input_files, sources
from bert_jax.data.sources.parquet import Parquet
from bert_jax.errors import ConfigError
from tests.corpora import changed, make_config


@pytest.fixture
def config(tmp_path):
    """A config whose source has six files of 40 bytes and a large one."""
    for i in range(6):
        (tmp_path / f"{i}.txt").write_text("w1 w2 w3.\n" * 4)
    (tmp_path / "large.txt").write_text("w1 w2 w3.\n" * 40)
    return make_config(tmp_path, sources=(f"text:{tmp_path}/[0-9l]*.txt",))


def plan(config, work, max_bytes=100):
    found = input_files.find(config.data.sources)
    return input_groups.plan(found, config.data, str(work), max_bytes)


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def files_of(groups):
    return [[os.path.basename(file.path) for file in group.files] for group in groups]


def test_small_files_share_a_group(config, work):
    groups = plan(config, work)
    assert files_of(groups) == [
        ["0.txt", "1.txt"],
        ["2.txt", "3.txt"],
        ["4.txt", "5.txt"],
        ["large.txt"],
    ]
    assert len({group.name for group in groups}) == 4
    assert [group.text_bytes for group in groups] == [80, 80, 80, 400]
    assert plan(config, work) == groups


def names(groups):
    """Returns the name of the group of each file."""
    return {
        os.path.basename(file.path): group.name
        for group in groups
        for file in group.files
    }


def test_a_changed_file_renames_its_own_group(config, work, tmp_path):
    before = names(plan(config, work))
    os.utime(tmp_path / "2.txt", ns=(0, 1))
    after = names(plan(config, work))
    assert {name for name in before if before[name] != after[name]} == {
        "2.txt",
        "3.txt",
    }


def test_an_added_or_removed_file_does_not_change_other_groups(config, work, tmp_path):
    before = names(plan(config, work))
    (tmp_path / "00.txt").write_text("w1 w2")
    after = names(plan(config, work))
    assert after.pop("00.txt") not in before.values() and after == before
    os.remove(tmp_path / "0.txt")
    after = names(plan(config, work))
    assert after.pop("1.txt") != before["1.txt"]
    assert {name: after[name] for name in before if name > "1.txt"} == {
        name: before[name] for name in before if name > "1.txt"
    }


def test_only_a_weighted_source_depends_on_the_held_out_share(config, work, tmp_path):
    specs = (f"text:{tmp_path}/[0-2].txt", f"text:{tmp_path}/[3-5].txt")
    config = changed(config, "data", sources=specs, source_weights=(1.0, 2.0))
    before = names(plan(config, work))
    after = names(plan(changed(config, "data", validation_fraction=0.3), work))
    assert {name[0] for name in before if before[name] == after[name]} == set("012")
    after = names(plan(changed(config, "data", source_weights=(1.0, 3.0)), work))
    assert {name[0] for name in before if before[name] == after[name]} == set("012")


def test_a_source_without_files_is_one_group(config, work):
    config = changed(config, "data", sources=("embedded:", "tfds:any#text"))
    assert [group.spec for group in plan(config, work)] == [
        "embedded:",
        "tfds:any#text",
    ]


@pytest.fixture
def parquet_config(tmp_path):
    """A config whose source has a large Parquet file, and two small ones."""
    texts = [f"w1 w2 w{i % 50}. w3 w4." for i in range(100)]
    for name, rows in (("a", texts), ("b", texts[:2]), ("c", texts[:3])):
        table = pyarrow.table({"text": rows})
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(table, path, row_group_size=5, compression="none")
    return make_config(tmp_path, sources=(f"parquet:{tmp_path}/*.parquet#text",))


def test_a_large_parquet_file_is_divided_by_row_groups(parquet_config, work, tmp_path):
    groups = plan(parquet_config, work, 500)
    parts = [file for group in groups for file in group.files if "a.par" in file.path]
    bounds = [file.part for file in parts]
    assert len(bounds) > 2 and bounds[0][0] == 0 and bounds[-1][1] == 20
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert sum(x.num_bytes for x in parts) == os.path.getsize(tmp_path / "a.parquet")
    assert len({group.name for group in groups}) == len(groups)
    found = [d.lines for g in groups for d in reader_of(groups, parquet_config, g)]
    read = sources.read(parquet_config.data.sources[0], parquet_config.data, Counter())
    assert found == [document.lines for document in read] and len(found) == 105


def reader_of(groups, config, group):
    return input_groups.Reader(groups, config.data).read(group)[0]


def test_footers_are_read_once(parquet_config, work, tmp_path, monkeypatch):
    read = []
    parts = Parquet.parts

    def noted(self, file, max_bytes):
        read.append(os.path.basename(file.path))
        return parts(self, file, max_bytes)

    monkeypatch.setattr(Parquet, "parts", noted)
    groups = plan(parquet_config, work, 500)
    assert sorted(read) == ["a.parquet", "b.parquet", "c.parquet"]
    assert plan(parquet_config, work, 500) == groups and len(read) == 3
    os.utime(tmp_path / "a.parquet", ns=(0, 1))
    again = plan(parquet_config, work, 500)
    assert len(read) == 4 and len(again) == len(groups)
    of_a = [{x.name for x in y if "a.par" in x.files[0].path} for y in (groups, again)]
    assert len(of_a[0]) == len(of_a[1]) > 2 and of_a[0].isdisjoint(of_a[1])


def test_an_error_of_a_divided_parquet_file_is_reported_once(parquet_config, work):
    other = (parquet_config.data.sources[0].replace("#text", "#body"),)
    config = changed(parquet_config, "data", sources=other)
    groups = plan(config, work, 500)
    with pytest.raises(ConfigError, match="^3 lines or files .*a.parquet has no col"):
        list(input_groups.Reader(groups, config.data).keep())


def reader(config, work):
    return input_groups.Reader(plan(config, work), config.data)


def test_kept_documents_are_not_read_again(config, work, tmp_path):
    found = reader(config, work)
    kept = list(found.keep())
    for file in tmp_path.glob("[0-9l]*.txt"):
        file.unlink()
    again = [(g.source, d) for g in found.groups for d in found.read(g)[0]]
    assert again == kept and len(kept) == 7


def test_all_bad_lines_and_files_are_in_one_error(config, work, tmp_path):
    (tmp_path / "0.txt").write_bytes(b"w1\nw2 \xff w3\nw4\nw5 \xfe w6\n")
    (tmp_path / "1.txt").write_bytes(b"w \xff\n" * 10)
    (tmp_path / "4.txt").write_bytes("w1".encode("utf-16"))
    with pytest.raises(
        ConfigError, match="^13 lines or files of config.data"
    ) as caught:
        list(reader(config, work).keep())
    message = str(caught.value)
    for name, count in (("0.txt:2 ", 1), ("0.txt:4 ", 1), ("4.txt is UTF-16", 1)):
        assert message.count(name) == count
    assert len(re.findall(r"\) /\S*/1.txt:\d+ is not UTF-8", message)) == 3
    assert message.endswith("; and 7 more")


def test_a_single_bad_line_is_named(config, work, tmp_path):
    (tmp_path / "3.txt").write_bytes(b"w2 \xff w3\n")
    with pytest.raises(ConfigError, match=r"^/.*/3.txt:1 is not UTF-8"):
        list(reader(config, work).keep())


def test_bad_lines_of_json_are_collected(config, work, tmp_path):
    good = '{"text": "w1"}'
    bad = ['{"text": 1}', '{"other": "w1"}', "[]", "w1"]
    (tmp_path / "a.jsonl").write_text("\n".join([good, *bad, good]))
    config = changed(config, "data", sources=(f"jsonl:{tmp_path}/a.jsonl#text",))
    found = reader(config, work)
    documents, counts = found.read(found.groups[0])
    assert [d.lines for d in documents if d.lines] == [("w1",), ("w1",)]
    assert counts.num_bad == 4
    problems = ("has int in the field", "has no field 'text'", "is list, not an object")
    for number, (message, problem) in enumerate(
        zip(counts.messages, problems, strict=True)
    ):
        assert f"a.jsonl:{number + 2} {problem}" in message


def test_a_source_without_text_is_named(config, work, tmp_path):
    (tmp_path / "empty.md").write_text("\n\n")
    sources = (*config.data.sources, f"text:{tmp_path}/*.md")
    config = changed(config, "data", sources=sources)
    with pytest.raises(ConfigError, match=r"no text in 'text:.*\*.md'"):
        list(reader(config, work).keep())
