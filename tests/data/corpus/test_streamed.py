"""Tests of bert_jax.data.corpus.streamed: shards equal those of a prepared corpus."""

import json
import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest

from bert_jax.data.corpus import build, corpus, keyed, streamed
from bert_jax.errors import ConfigError, CorruptError
from tests.conftest import slow
from tests.corpora import (
    all_text,
    changed,
    elsewhere,
    files,
    make_config,
    make_documents,
    parquet_bytes,
)


def write_jsonl(path, documents):
    texts = ("\n".join(document) for document in documents)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def make(config):
    """Makes an index or a corpus in this process, and opens it."""
    return build.prepare(config, 1)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A config that streams documents, some of them repeated, from two sources."""
    directory = tmp_path_factory.mktemp("source")
    documents = make_documents(200)
    write_jsonl(directory / "1.jsonl", documents[:50])
    write_jsonl(directory / "2.jsonl", documents[50:120])
    text = ["\n".join(document) for document in documents[100:]]
    (directory / "3.parquet").write_bytes(parquet_bytes({"body": text}, 4))
    sources = (f"jsonl:{directory}/*.jsonl#text", f"parquet:{directory}/*.parquet#body")
    config = make_config(directory, sources=sources, stream=True)
    make(config)
    return config


@pytest.fixture
def second(source):
    """The second file of a source, which is restored after the test."""
    path = pathlib.Path(source.data.corpus_dir).parent / "2.jsonl"
    content = path.read_bytes()
    yield path
    path.write_bytes(content)


@pytest.mark.parametrize("weights", [(), slow((0.5, 2.5))])
def test_one_shard_equals_that_of_a_prepared_corpus(source, weights):
    one = {"num_shards": 1, "num_streams": 1, "source_weights": weights}
    found = make(elsewhere(source, f"one{weights}", **one))
    expected = make(elsewhere(source, f"files{weights}", stream=False, **one))
    for split in corpus.SPLITS:
        (ours,), (theirs,) = found.shards[split], expected.shards[split]
        arrays, documents = found.load_marked(ours)
        expected_arrays, expected_documents = expected.load_marked(theirs)
        np.testing.assert_array_equal(arrays, expected_arrays)
        assert arrays.dtype == expected_arrays.dtype
        for name in ("token_offsets", "sentence_offsets"):
            np.testing.assert_array_equal(
                getattr(documents, name), getattr(expected_documents, name)
            )
        np.testing.assert_array_equal(found.rows[split], expected.rows[split])


def test_only_the_assignment_of_documents_to_shards_differs(source):
    found = corpus.read(source)
    expected = make(elsewhere(source, "prepared", stream=False))
    ours, theirs = files(found.directory), files(expected.directory)
    assert set(ours) == {name for name in theirs if not name.startswith("train")}
    for name in set(ours) - {"manifest.json"}:
        assert ours[name] == theirs[name]
    assert set(map(tuple, all_text(found))) == set(map(tuple, all_text(expected)))


# ------------------------------------------------------------------------ processes


def load(found):
    return [found.load_marked(shard)[0] for shard in found.shards["train"]]


@pytest.fixture
def two_processes(monkeypatch):
    monkeypatch.setattr(streamed, "BYTES_PER_WORKER", 1)
    monkeypatch.setattr(streamed, "MAX_WORKERS", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.slow
def test_a_killed_process_is_replaced(source, two_processes, monkeypatch):
    monkeypatch.setattr(streamed, "KEPT_BYTES", 0)
    found = corpus.read(source)
    expected = load(found)
    pool = found.stream._pool
    for process in list(pool._processes.values()):
        os.kill(process.pid, signal.SIGKILL)
    while not pool._broken:
        time.sleep(0.01)
    # Two threads notice at the same time, as those of the pipeline do.
    results = [None, None]

    def again(i):
        results[i] = load(found)

    threads = [threading.Thread(target=again, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.stream._pool is not pool
    for result in results:
        assert all(map(np.array_equal, result, expected))


@pytest.mark.parametrize("kept_bytes, count", [(2**20, 1), (0, 3)])
def test_a_small_text_is_encoded_once(source, monkeypatch, kept_bytes, count):
    monkeypatch.setattr(streamed, "KEPT_BYTES", kept_bytes)
    found = corpus.read(source)
    assert found.stream.num_workers == 1
    encoded = []
    encode = found.stream._encoder
    found.stream._encoder = lambda unit: encoded.append(unit) or encode(unit)
    first, *others = [load(found) for _ in range(3)]
    for other in others:
        assert all(map(np.array_equal, first, other))
    num_units = sum(map(len, found.stream.units.values()))
    assert len(encoded) == count * num_units


# ---------------------------------------------------------------------------- errors


def fails(config, *words, do=build.find_corpus):
    with pytest.raises(ConfigError) as caught:
        do(config)
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


def test_changed_files_are_refused(source, second):
    content = second.read_bytes()
    second.write_bytes(content + b'{"text": "More."}\n')
    fails(source, "2.jsonl was changed", "config.data.corpus_dir=")
    second.unlink()
    fails(source, "2.jsonl was removed")
    # evaluate and export read no training text.
    found = corpus.read(source)
    assert len(found.load(found.shards["validation"][0])[0])
    second.write_bytes(content)
    (second.parent / "4.jsonl").write_bytes(content)
    fails(source, "4.jsonl was added")
    (second.parent / "4.jsonl").unlink()
    build.find_corpus(source)


def test_the_same_text_with_other_modification_times_is_the_same_corpus(source, second):
    expected = corpus.read(source)
    os.utime(second, ns=(0, 1))
    found = build.find_corpus(source)
    assert all(map(np.array_equal, load(found), load(expected)))
    # A checkpoint records the digest, and a run resumes with an equal digest only.
    assert make(elsewhere(source, "again")).sha256 == found.sha256 == expected.sha256


@pytest.mark.parametrize(
    "replace, word", [((b"w1", b"w2"), "other token ids"), ((b'"', b"'"), "not JSON")]
)
def test_a_change_that_sizes_do_not_show_is_found(source, second, replace, word):
    second.write_bytes(second.read_bytes().replace(*replace))
    found = build.find_corpus(source)
    with pytest.raises(CorruptError, match=word) as caught:
        load(found)
    assert "2.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_a_text_too_large_for_memory_is_an_error(source, tmp_path, monkeypatch):
    monkeypatch.setattr(keyed, "MAX_SHARD_BYTES", 2000)
    (tmp_path / "a.txt").write_text("w1 w2 w3.\n" * 500)
    whole = (f"text:{tmp_path}/a.txt",)
    one = {"sources": whole, "num_shards": 1, "num_streams": 1}
    fails(elsewhere(source, "whole", **one), "a.txt has more than", "groups", do=make)


def test_an_index_is_not_a_corpus(source):
    config = changed(source, "data", stream=False)
    fails(config, "config.data.stream=False", "an index", "config.data.stream=True")


# ------------------------------------------------------------------------------- Hub


def dataset():
    text = ["\n".join(document) for document in make_documents(60)]
    return {"data/train-00000-of-00001.parquet": parquet_bytes({"text": text}, 4)}


def test_the_hub_is_read_at_the_indexed_commit(hub, tmp_path):
    repository = hub.add("datasets/owner/name", dataset())
    commit = repository.refs["main"]
    config = make_config(tmp_path, sources=("hf:owner/name",), stream=True)
    make(config)
    repository.commit({"data/train-00000-of-00001.parquet": b""})
    hub.requests.clear()
    found = build.find_corpus(config)
    assert not hub.requests
    (file,) = found.stream.files
    assert file[1].startswith(f"hf://datasets/owner/name@{commit}/data/train")
    assert sum(map(len, load(found))) == sum(
        x.num_tokens for x in found.shards["train"]
    )
    assert hub.requests
