"""Tests of bert_jax.data.corpus.index: interrupted, repeated, with bad lines."""

import gzip
import re

import pytest

from bert_jax.data.corpus import build, index
from bert_jax.errors import ConfigError
from tests.corpora import changed, files, make_config, make_documents
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


def elsewhere(config):
    return changed(config, "data", corpus_dir=config.data.corpus_dir + "_2")


@pytest.mark.slow
@pytest.mark.parametrize("vocab_file", ["given", "trained"])
def test_any_number_of_workers_makes_the_same_files(config, vocab_file):
    if vocab_file == "trained":
        config = changed(config, "tokenizer", vocab_file="", vocab_size=90)
    make(config)
    build.prepare(elsewhere(config), 2)
    expected = files(config.data.corpus_dir)
    assert files(elsewhere(config).data.corpus_dir) == expected
    assert len(expected["manifest.json"]) < 20_000


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


def test_a_killed_call_resumes_with_another_number_of_shards(
    config, indexed, tmp_path, monkeypatch
):
    for i in range(5):
        write_jsonl(tmp_path / "text.jsonl", make_documents(60, seed=i))
        data = gzip.compress((tmp_path / "text.jsonl").read_bytes())
        (tmp_path / f"{i}.jsonl.gz").write_bytes(data)
    sources = (f"jsonl:{tmp_path}/*.gz#text",)
    five = changed(config, "data", sources=sources, num_shards=5, num_streams=1)
    with monkeypatch.context() as patch:
        patch.setattr(build.writer, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
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


def interrupt(*args):
    raise KeyboardInterrupt


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
    monkeypatch.setattr(index.segments, "MAX_SHARD_BYTES", shard.num_bytes // 4)
    with pytest.raises(ConfigError, match=f"{shard.file} would contain") as caught:
        make(elsewhere(config))
    assert len(encoded) < len(made.stream.index.units[shard.file]) / 2
    factor = re.search(r"num_shards by at least (\d\.\d)", str(caught.value))
    assert 3 < float(factor[1]) < 8


def test_bad_lines_are_reported_together_and_only_their_shards_are_repeated(
    config, indexed, tmp_path
):
    good = {}
    for name in ("1.jsonl", "2.jsonl"):
        good[name] = (tmp_path / name).read_text()
        lines = good[name].splitlines(keepends=True)
        lines[30] = lines[30].replace('"text"', '"tent"')
        (tmp_path / name).write_text("".join(lines))
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
    whole = (f"text:{tmp_path}/a.txt",)
    few = changed(config, "data", sources=whole)
    fails(few, "num_shards=4, but", "1 part(s)", do=make)
    more = (*config.data.sources, *whole)
    fails(changed(config, "data", sources=more), "no text in", "a.txt", do=make)
    more = (*config.data.sources, "embedded:")
    fails(changed(config, "data", sources=more), "stream=True needs files", do=make)
