"""Tests of bert_jax.data.corpus.sorted_runs."""

import collections
import os

import numpy as np
import pytest

from bert_jax.data.corpus import encoding, keyed, sorted_runs
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError
from tests.commands import run_code
from tests.corpora import make_config, make_documents, raw, shard_of
from tests.data.corpus.test_keyed import to_entries


def cut(documents, max_bytes=100, counts=None):
    counts = {} if counts is None else counts
    return list(sorted_runs.batches("group", 3, documents, counts, max_bytes))


def test_batches_hold_all_documents_in_order():
    documents = [raw(document) for document in make_documents(90)]
    found = cut(documents)
    assert [d for b in found for d in b.documents] == documents
    names = [f"group-{i:06d}" for i in range(len(found))]
    assert [batch.name for batch in found] == [*names[:-1], names[-1] + "-last"]
    assert {sorted_runs.group_of(batch.name) for batch in found} == {"group"}
    assert {batch.source for batch in found} == {3}
    for batch in found:
        sizes = [len("\n".join(d.lines)) + 1 for d in batch.documents]
        assert batch.num_bytes == sum(sizes)
        assert sum(sizes[:-1]) < 100
    assert all(batch.num_bytes >= 100 for batch in found[:-1])


def test_batches_of_no_documents_and_of_a_large_document():
    (empty,) = cut([])
    assert empty.name == "group-000000-last" and empty.documents == []
    a, large, b = raw(["a"]), raw(["w1 " * 200]), raw(["b"])
    assert [batch.documents for batch in cut([a, large, b])] == [[a, large], [b]]


def test_the_last_batch_has_the_counts_of_reading():
    counts = collections.Counter()

    def documents():
        for document in make_documents(30):
            counts["lines_cut"] += 1
            yield raw(document)

    found = cut(documents(), counts=counts)
    assert len(found) > 2
    assert [batch.counts for batch in found[:-1]] == [{}] * (len(found) - 1)
    assert found[-1].counts == {"lines_cut": 30}


@pytest.fixture
def run(tmp_path):
    """A config, the distinct entries of its documents, and their run."""
    config = make_config(tmp_path, num_shards=64, num_streams=1)
    tokenizer = tokenizers.load(config.tokenizer)
    documents = [raw(d) for d in make_documents(100) + make_documents(3) + [[]]]
    batch = sorted_runs.Batch("g-000007", 0, 12345, documents, {"lines_cut": 2})
    write = sorted_runs.RunWriter(str(tmp_path), config.data, tokenizer)
    assert write(batch) == 12345
    encoder = encoding.DocumentEncoder(config.data, tokenizer)
    entries = {
        entry
        for document in documents
        for entry in encoder(document, 0, collections.Counter())
    }
    path = sorted_runs.run_path(str(tmp_path), batch.name)
    return config, sorted(entries), sorted_runs.RunFile(path, np.dtype(np.uint16))


def test_the_header_has_the_counts_of_the_documents(run):
    _, entries, found = run
    header = found.header
    assert header["num_documents"] == len(entries) == 100
    assert header["num_tokens"] == sum(len(e.token_ids) // 2 for e in entries)
    assert header["counts"]["read"] == 104 and header["counts"]["lines_cut"] == 2
    assert header["counts"]["repeated"] == 3


def test_a_request_that_is_not_permitted_is_not_corruption(run, monkeypatch):
    def refused(*_):
        raise ConfigError("not permitted")

    monkeypatch.setattr(sorted_runs.storage, "read_ranges", refused)
    with pytest.raises(ConfigError, match="^not permitted$"):
        sorted_runs.RunFile(run[2].path, np.dtype(np.uint16))


def test_a_piece_holds_the_documents_of_a_key_range(run):
    config, entries, found = run
    ranges = keyed.key_ranges(config.data, 2)
    by_shard = collections.defaultdict(list)
    for entry in entries:
        by_shard[shard_of(ranges, entry.key)].append(entry)
    assert 40 < len(by_shard) < 66  # some shards get nothing
    positions = sorted_runs.positions(found.records(), ranges.inner_edges)
    for shard in range(len(ranges.files)):
        piece = found.read(positions[shard], positions[shard + 1])
        assert to_entries(piece) == by_shard[shard]
    totals = np.diff(positions, axis=0)
    assert totals[:, 0].tolist() == [len(by_shard[i]) for i in range(len(ranges.files))]
    assert totals[:, 3].sum() == 0


def test_runs_of_other_groups_are_removed(run, tmp_path):
    _, _, found = run
    assert found.path == sorted_runs.run_path(str(tmp_path), "g-000007")
    last = "h-000001" + sorted_runs.LAST
    for name in ("h-000000", last):
        os.link(found.path, sorted_runs.run_path(str(tmp_path), name))
    assert not sorted_runs.has_group({"h-000000"}, "h")
    left = sorted_runs.remove_all_but({"h"}, str(tmp_path))
    assert left == sorted_runs.finished(str(tmp_path)) == {"h-000000", last}
    assert sorted_runs.has_group(left, "h") and not sorted_runs.has_group(left, "g")


def test_the_worker_imports_neither_tensorflow_nor_jax():
    program = (
        "import sys, bert_jax.data.corpus.sorted_runs;"
        " print({'tensorflow', 'jax'} & set(sys.modules))"
    )
    done = run_code(program)
    assert done.stdout == "set()\n", done.stdout + done.stderr
