"""Tests of bert_jax.data.sources.units: units together are the whole source."""

import collections
import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.data.corpus import build
from bert_jax.data.sources import input_files, lines, sources, units
from bert_jax.errors import ConfigError
from tests import corpora
from tests.conftest import make_config

TEXTS = [f"Text {i} is first.\nThere is more of it." * (i % 9) for i in range(300)]


@pytest.fixture
def files(tmp_path):
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
    return units.plan(input_files.find(specs), num_shards)


def read(spec, planned=None):
    data, counts = make_config().data, collections.Counter()
    if planned is None:
        return [found.lines for found in sources.read(spec, data, counts)]
    return [
        found.lines
        for unit in planned
        for found in sources.read(spec, data, counts, [unit.path], unit.part)
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
def test_units_are_the_whole_source(files, name, counts):
    spec = name.format(files)
    for num_shards, at_least in zip((1, 5), counts, strict=True):
        planned = plan((spec,), num_shards)
        assert len(planned) >= at_least
        assert read(spec, planned) == read(spec) != []


def test_a_large_file_has_units_of_the_maximum_size(files, monkeypatch):
    monkeypatch.setattr(units, "MAX_BYTES", 1000)
    path = files / "a.jsonl"
    planned = plan((f"jsonl:{path}#text",))
    assert len(planned) == round(path.stat().st_size / 1000)
    groups = plan((f"parquet:{files}/d.parquet#a.text",))
    sizes = parquet.ParquetFile(files / "d.parquet").metadata
    for unit in groups:
        size = sum(
            sizes.row_group(i).column(1).total_uncompressed_size
            for i in range(*unit.part)
        )
        assert size <= 1000 or unit.part[1] - unit.part[0] == 1


@pytest.mark.parametrize(
    "column, damage, message",
    [("b", 0, "has no column 'b' of text"), ("a.text", 9, "corrupt or not Par")],
)
def test_a_parquet_file_that_cannot_be_read_is_an_error(files, column, damage, message):
    path = files / "d.parquet"
    path.write_bytes(path.read_bytes()[: -damage or None])
    with pytest.raises(ConfigError, match=message):
        plan((f"parquet:{path}#{column}",))


def test_errors_of_a_row_group_name_the_row_of_the_file(files):
    path = files / "bad.parquet"
    values = pyarrow.array([b"a"] * 25 + [b"\xff"], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 26, values.buffers())
    parquet.write_table(pyarrow.table({"text": text}), path, row_group_size=10)
    spec = f"parquet:{path}#text"
    with pytest.raises(ConfigError, match=r"bad.parquet:26 is not UTF-8"):
        list(
            sources.read(
                spec, make_config().data, collections.Counter(), [str(path)], (2, 3)
            )
        )


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_file_that_is_not_utf8_is_skipped_as_a_whole(files, encoding, monkeypatch):
    monkeypatch.setattr(units, "MAX_BYTES", 1000)
    text = (files / "a.jsonl").read_text()
    (files / "other.jsonl").write_text(text, encoding=encoding)
    data = make_config(data__invalid_utf8="skip").data
    counts = lines.ReadCounts()
    spec = f"jsonl:{files}/*.jsonl#text"
    planned = plan((spec,))
    assert len(planned) > 10
    for unit in planned:
        found = sources.read(spec, data, counts, [unit.path], unit.part)
        assert bool(list(found)) == (unit.path == f"{files}/a.jsonl")
    assert counts == {"files_skipped": 1} and not counts.num_bad


@pytest.mark.parametrize("spec", ["embedded:", "tfds:any#text"])
def test_a_source_without_files_cannot_be_streamed(tmp_path, spec):
    sources_of_config = (f"text:{tmp_path}/a.txt", spec)
    units.check(sources_of_config[:1])
    config = corpora.make_config(tmp_path, sources=sources_of_config, stream=True)
    with pytest.raises(ConfigError, match=f"has '{spec}', but .*stream=True needs fil"):
        build.prepare(config)
    assert not (tmp_path / "corpus").exists()
