"""Tests of bert_jax.data.corpus.input_groups."""

import itertools
import os
import pickle
import re
from collections import Counter

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.data.corpus import input_groups
from bert_jax.data.sources import lines, sources
from bert_jax.errors import ConfigError
from tests.corpora import changed, make_config


@pytest.fixture
def config(tmp_path):
    """A config whose source has thirty files of 40 bytes and a large one."""
    for i in range(10, 40):
        (tmp_path / f"{i}.txt").write_text("w1 w2 w3.\n" * 4)
    (tmp_path / "large.txt").write_text("w1 w2 w3.\n" * 40)
    return make_config(tmp_path, sources=(f"text:{tmp_path}/[0-9l]*.txt",))


def plan(config, max_bytes=100):
    found = sources.find(config.data.sources)
    return input_groups.plan(found, config.data, max_bytes)


def test_small_files_share_a_group(config):
    groups = plan(config)
    files = [file for group in groups for file in group.files]
    assert files == list(sources.find(config.data.sources)[0].files)
    assert [file.path[-9:] for file in groups[-1].files] == ["large.txt"]
    # The groups of 30 files depend on the temporary directory: 13 of them on average.
    assert 1 < len(groups) < 31 and len({group.name for group in groups}) == len(groups)
    assert sum(group.text_bytes for group in groups) == 31 * 40 + 360
    assert plan(config) == groups


def names(groups):
    """Returns the name of the group of each file."""
    return {
        os.path.basename(file.path): group.name
        for group in groups
        for file in group.files
    }


def test_a_changed_added_or_removed_file_renames_its_own_group(config, tmp_path):
    """And the next one, if the file was the last of its group."""
    before = names(plan(config))
    os.utime(tmp_path / "20.txt", ns=(0, 1))
    after = names(plan(config))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in before if before[name] == before["20.txt"]}
    for change in (
        lambda: (tmp_path / "201.txt").write_text("w1 w2"),
        lambda: os.remove(tmp_path / "30.txt"),
    ):
        before = after
        change()
        after = names(plan(config))
        common = before.keys() & after.keys()
        assert len({before[name] for name in common if before[name] != after[name]}) < 3


def test_only_a_weighted_source_depends_on_the_held_out_share(config, tmp_path):
    specs = (f"text:{tmp_path}/1*.txt", f"text:{tmp_path}/2*.txt")
    config = changed(config, "data", sources=specs, source_weights=(1.0, 2.0))
    before = names(plan(config))
    after = names(plan(changed(config, "data", validation_fraction=0.3)))
    assert {name[0] for name in before if before[name] == after[name]} == {"1"}
    after = names(plan(changed(config, "data", source_weights=(1.0, 3.0))))
    assert {name[0] for name in before if before[name] == after[name]} == {"1"}


def test_a_source_without_files_is_one_group(config):
    config = changed(config, "data", sources=("embedded:", "tfds:any#text"))
    assert [(group.source, group.files) for group in plan(config)] == [(0, ()), (1, ())]


@pytest.fixture
def parquet_config(tmp_path):
    """A config whose source has a large Parquet file, and two small ones."""
    texts = [f"w1 w2 w{i % 50}. w3 w4." for i in range(100)]
    for name, rows in (("a", texts), ("b", texts[:2]), ("c", texts[:3])):
        table = pyarrow.table({"text": rows})
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(table, path, row_group_size=5, compression="none")
    return make_config(tmp_path, sources=(f"parquet:{tmp_path}/*.parquet#text",))


def test_a_large_parquet_file_is_divided_by_row_groups(parquet_config, tmp_path):
    groups = plan(parquet_config, 500)
    parts = [file for group in groups for file in group.files if "a.par" in file.path]
    bounds = [file.part for file in parts]
    assert len(bounds) > 2 and bounds[0][0] == 0 and bounds[-1][1] == 20
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert sum(x.num_bytes for x in parts) == os.path.getsize(tmp_path / "a.parquet")
    assert len({group.name for group in groups}) == len(groups)
    found = [d.lines for d in read_all(groups, parquet_config)]
    read = sources.read(parquet_config.data.sources[0], parquet_config.data, Counter())
    assert found == [document.lines for document in read] and len(found) == 105


def read(group, config, counts):
    files = [(file.path, file.part) for file in group.files]
    return sources.read(config.data.sources[group.source], config.data, counts, files)


def read_all(groups, config):
    """Reads all groups; raises one error for all of them."""
    found, all_counts = [], []
    for group in groups:
        all_counts.append(lines.ReadCounts())
        found += read(group, config, all_counts[-1])
    input_groups.raise_bad(all_counts)
    return found


def test_an_error_of_a_divided_parquet_file_is_reported_once(parquet_config):
    other = (parquet_config.data.sources[0].replace("#text", "#body"),)
    config = changed(parquet_config, "data", sources=other)
    groups = plan(config, 500)
    with pytest.raises(
        ConfigError, match="^3 lines or files .*a.parquet has no column"
    ):
        read_all(groups, config)


def test_all_bad_lines_and_files_are_in_one_error(config, tmp_path):
    (tmp_path / "0.txt").write_bytes(b"w1\nw2 \xff w3\nw4\nw5 \xfe w6\n")
    (tmp_path / "1.txt").write_bytes(b"w \xff\n" * 10)
    (tmp_path / "4.txt").write_bytes("w1".encode("utf-16"))
    with pytest.raises(
        ConfigError, match="^13 lines or files of config.data"
    ) as caught:
        read_all(plan(config), config)
    message = str(caught.value)
    for name, count in (("0.txt:2 ", 1), ("0.txt:4 ", 1), ("4.txt is UTF-16", 1)):
        assert message.count(name) == count
    assert len(re.findall(r"\) /\S*/1.txt:\d+ is not UTF-8", message)) == 3
    assert message.endswith("; and 7 more")


def test_a_single_bad_line_is_named(config, tmp_path):
    (tmp_path / "3.txt").write_bytes(b"w2 \xff w3\n")
    with pytest.raises(ConfigError, match=r"^/.*/3.txt:1 is not UTF-8"):
        read_all(plan(config), config)


def test_bad_lines_of_json_are_collected(config, tmp_path):
    good = '{"text": "w1"}'
    bad = ['{"text": 1}', '{"other": "w1"}', "[]", "w1"]
    (tmp_path / "a.jsonl").write_text("\n".join([good, *bad, good]))
    config = changed(config, "data", sources=(f"jsonl:{tmp_path}/a.jsonl#text",))
    (group,), counts = plan(config), lines.ReadCounts()
    documents = read(group, config, counts)
    assert [d.lines for d in documents if d.lines] == [("w1",), ("w1",)]
    counts = pickle.loads(pickle.dumps(counts))  # workers return them
    assert counts.num_bad == 4
    problems = ("has int in the field", "has no field 'text'", "is list, not an object")
    for number, (message, problem) in enumerate(
        zip(counts.messages, problems, strict=True)
    ):
        assert f"a.jsonl:{number + 2} {problem}" in message
