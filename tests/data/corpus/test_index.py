"""Tests of bert_jax.data.corpus.index: its units, interruptions and bad lines."""

import collections
import gzip
import json
import pathlib
import re
import shutil

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.data.corpus import index
from bert_jax.data.sources import lines, sources
from bert_jax.errors import ConfigError, CorruptError
from tests.conftest import make_config as model_config
from tests.corpora import (
    changed,
    elsewhere,
    files,
    interrupted,
    make_config,
    make_documents,
    write_documents,
)
from tests.data.corpus.test_streamed import fails, make, write_jsonl

NUM_SHARDS = 4


@pytest.fixture
def config(tmp_path):
    for i in range(3):
        write_jsonl(tmp_path / f"{i}.jsonl", make_documents(60, seed=i))
    sources = (f"jsonl:{tmp_path}/?.jsonl#text",)
    return make_config(tmp_path, sources=sources, stream=True, num_shards=NUM_SHARDS)


@pytest.fixture
def indexed(monkeypatch):
    """A list to which every indexed shard is added."""
    found = []
    write = index.ShardIndexer.__call__

    def noted(self, task):
        result = write(self, task)
        found.append(task.file)
        return result

    monkeypatch.setattr(index.ShardIndexer, "__call__", noted)
    return found


def test_a_killed_call_resumes(config, indexed, monkeypatch):
    make(elsewhere(config))
    assert len(indexed) == NUM_SHARDS
    indexed.clear()
    save = index.sorted_runs.save

    def save_two(*args):
        if len(indexed) == 2:
            raise KeyboardInterrupt
        save(*args)

    with monkeypatch.context() as patch:
        patch.setattr(index.sorted_runs, "save", save_two)
        with pytest.raises(KeyboardInterrupt):
            make(config)
    make(config)
    assert sorted(indexed) == sorted(set(indexed)) and len(indexed) == NUM_SHARDS
    assert files(config.data.corpus_dir) == files(elsewhere(config).data.corpus_dir)


def test_a_killed_call_resumes_with_another_number_of_shards(config, indexed, tmp_path):
    for i in range(5):
        write_jsonl(tmp_path / "text.jsonl", make_documents(60, seed=i))
        data = gzip.compress((tmp_path / "text.jsonl").read_bytes())
        (tmp_path / f"{i}.jsonl.gz").write_bytes(data)
    sources = (f"jsonl:{tmp_path}/*.gz#text",)
    five = changed(config, "data", sources=sources, num_shards=5, num_streams=1)
    with interrupted():
        make(five)
    indexed.clear()
    four = changed(five, "data", num_shards=4)
    found = make(four)
    assert len(indexed) == 1  # three shards consist of the same unit as before
    names = [f"train-{i:05d}-of-00004" for i in range(4)]
    assert [shard.file for shard in found.shards["train"]] == names
    for shard in found.shards["train"]:
        assert len(found.load(shard)[0]) == shard.num_tokens
    make(elsewhere(four))
    assert files(four.data.corpus_dir) == files(elsewhere(four).data.corpus_dir)


def test_a_damaged_entry_of_a_killed_call_is_named(config):
    with interrupted():
        make(config)
    runs = pathlib.Path(config.data.corpus_dir) / "unfinished/runs"
    min(runs.glob("[!s]*.json")).write_bytes(b"")
    with pytest.raises(
        CorruptError, match=f"is corrupt; remove {runs}, and rerun this command$"
    ):
        make(config)
    shutil.rmtree(runs)
    make(config)


def test_too_large_a_shard_is_an_error_before_it_is_read_to_the_end(
    config, monkeypatch
):
    made = make(config)
    shard = made.shards["train"][0]
    encoded = []
    encode = index.streamed.UnitEncoder.__call__

    def noted(self, unit):
        encoded.append(unit)
        return encode(self, unit)

    monkeypatch.setattr(index.streamed.UnitEncoder, "__call__", noted)
    monkeypatch.setattr(index.keyed, "MAX_SHARD_BYTES", shard.num_bytes // 4)
    with pytest.raises(ConfigError, match=f"{shard.file} would contain") as caught:
        make(elsewhere(config))
    assert len(encoded) < len(made.stream.units[shard.file]) / 2
    factor = re.search(r"num_shards by at least (\d+)", str(caught.value))
    assert 3 < float(factor[1]) < 8


def test_bad_lines_are_reported_together_and_only_their_shards_are_repeated(
    config, indexed, tmp_path
):
    good = {}
    for name in ("1.jsonl", "2.jsonl"):
        good[name] = (tmp_path / name).read_text()
        bad = good[name].splitlines(keepends=True)
        bad[30] = bad[30].replace('"text"', '"tent"')
        (tmp_path / name).write_text("".join(bad))
    fails(
        config, "2 lines", "1.jsonl:", "2.jsonl:", "no field 'text'", "resume", do=make
    )
    indexed.clear()
    for name, text in good.items():
        (tmp_path / name).write_text(text)
    make(config)
    assert 0 < len(indexed) <= NUM_SHARDS
    make(elsewhere(config))
    assert files(config.data.corpus_dir) == files(elsewhere(config).data.corpus_dir)


def test_errors_name_the_key(config, tmp_path):
    (tmp_path / "a.txt").write_text("\n\n")
    schema = pyarrow.schema([("text", pyarrow.string())])
    parquet.ParquetWriter(tmp_path / "a.parquet", schema).close()  # no row group
    for i, count in enumerate((900, 1, 1, 1)):
        write_documents(tmp_path / f"b{i}.txt", make_documents(count, seed=i))
    jsonl, text = config.data.sources, f"text:{tmp_path}/"
    for specs, *words in (
        ((text + "a.txt",), "num_shards=4, but", "1 part(s)"),
        ((f"parquet:{tmp_path}/a.parquet",), "num_shards=4, but", "1 part(s)"),
        ((text + "b*.txt",), "set config.data.num_shards=2 and"),
        ((*jsonl, text + "a.txt"), "no text in", "a.txt"),
        ((*jsonl, "embedded:"), "stream=True needs files"),
    ):
        fails(changed(config, "data", sources=specs), *words, do=make)


# ------------------------------------------------------------------------- units

TEXTS = [f"Text {i} is first.\nThere is more of it." * (i % 9) for i in range(300)]


@pytest.fixture
def formats(tmp_path):
    """Writes the texts in four formats."""
    content = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS)
    (tmp_path / "a.jsonl").write_text(content)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "c.txt").write_text("\n\n".join(TEXTS))
    table = pyarrow.table({"id": [1] * len(TEXTS), "a": [{"text": t} for t in TEXTS]})
    (tmp_path / "dataset").mkdir()
    for path in ("d.parquet", "dataset/train.parquet"):
        parquet.write_table(table, tmp_path / path, row_group_size=10)
    return tmp_path


def plan(specs, num_shards=1):
    return index.plan_units(sources.find(specs), num_shards)


def read(spec, planned=None):
    data, counts = model_config().data, collections.Counter()
    if planned is None:
        return [found.lines for found in sources.read(spec, data, counts)]
    return [
        found.lines
        for unit in planned
        for found in sources.read(spec, data, counts, [unit[1:]])
    ]


@pytest.mark.parametrize(
    "name, counts",
    [
        ("jsonl:{}/*.jsonl#text", (16, 80)),
        ("jsonl:{}/*.gz#text", (1, 1)),
        ("text:{}/*.txt", (1, 1)),
        ("parquet:{}/*.parquet#a.text", (5, 20)),
        ("hf:{}/dataset#a.text", (5, 20)),
    ],
)
def test_units_are_the_whole_source(formats, name, counts):
    spec = name.format(formats)
    for num_shards, at_least in zip((1, 5), counts, strict=True):
        planned = plan((spec,), num_shards)
        assert len(planned) >= at_least
        assert read(spec, planned) == read(spec) != []


@pytest.mark.parametrize(
    "column, damage, message",
    [("b", 0, "has no column 'b' of text"), ("a.text", 9, "corrupt or not Par")],
)
def test_a_parquet_file_that_cannot_be_read(formats, column, damage, message):
    path = formats / "d.parquet"
    path.write_bytes(path.read_bytes()[: -damage or None])
    with pytest.raises(ConfigError, match=message):
        plan((f"parquet:{path}#{column}",))


def test_errors_of_a_row_group_name_the_row_of_the_file(formats):
    path = formats / "bad.parquet"
    values = pyarrow.array([b"a"] * 25 + [b"\xff"], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 26, values.buffers())
    parquet.write_table(pyarrow.table({"text": text}), path, row_group_size=10)
    spec = f"parquet:{path}#text"
    with pytest.raises(ConfigError, match=r"parquet:26 is not .* convert its text"):
        read(spec, [index.Unit(0, str(path), (2, 3))])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_file_that_is_not_utf8_is_skipped_as_a_whole(formats, encoding, monkeypatch):
    monkeypatch.setattr(index, "MAX_BYTES", 1000)
    text = (formats / "a.jsonl").read_text()
    (formats / "other.jsonl").write_text(text, encoding=encoding)
    data = model_config(data__invalid_utf8="skip").data
    counts = lines.ReadCounts()
    spec = f"jsonl:{formats}/*.jsonl#text"
    planned = plan((spec,))
    assert len(planned) > 10
    for unit in planned:
        found = sources.read(spec, data, counts, [unit[1:]])
        assert bool(list(found)) == (unit.path == f"{formats}/a.jsonl")
    assert counts == {"files_skipped": 1} and not counts.num_bad
