"""Tests of bert_jax.data.sorted_runs."""

import collections
import os
import subprocess
import sys

import numpy as np
import pytest

from bert_jax.data import encoding, sorted_runs, tokenizers
from tests.commands import ROOT
from tests.corpora import make_config, make_documents, raw


def cut(pairs, max_bytes=100):
    return list(sorted_runs.batches(pairs, max_bytes))


def test_batches_hold_all_documents_in_order_and_none_of_two_sources():
    documents = [raw(document) for document in make_documents(90)]
    pairs = [(i // 30, document) for i, document in enumerate(documents)]
    found = cut(pairs)
    assert [(b.source, d) for b in found for d in b.documents] == pairs
    assert [batch.number for batch in found] == list(range(len(found)))
    for batch in found:
        sizes = [len("\n".join(d.lines)) + 1 for d in batch.documents]
        assert batch.num_bytes == sum(sizes)
        assert sum(sizes[:-1]) < 100
    ends = [b for b, c in zip(found, found[1:], strict=False) if b.source == c.source]
    assert all(batch.num_bytes >= 100 for batch in ends)


def test_no_documents_make_no_batch_and_a_large_one_makes_its_own():
    assert cut([]) == []
    a, large, b = raw(["a"]), raw(["w1 " * 200]), raw(["b"])
    found = cut([(0, a), (0, large), (0, b)])
    assert [batch.documents for batch in found] == [[a, large], [b]]


@pytest.fixture
def run(tmp_path):
    """A config, its documents' entries by shard, and the path of their run."""
    config = make_config(tmp_path, num_shards=64, num_streams=1, validation_fraction=0)
    tokenizer = tokenizers.load(config.tokenizer)
    documents = [raw(d) for d in make_documents(100) + make_documents(3)]
    batch = sorted_runs.Batch(7, 0, 12345, documents)
    num_bytes = sorted_runs.RunWriter(str(tmp_path), config.data, tokenizer).write(
        batch
    )
    assert num_bytes == 12345
    by_shard = collections.defaultdict(list)
    encoder = encoding.DocumentEncoder(config.data, tokenizer)
    for document in documents:
        for shard, entry in encoder(document, 0, collections.Counter()):
            by_shard[shard].append(entry)
    return config, by_shard, sorted_runs.run_path(str(tmp_path), 7)


def test_tokens_are_not_copied_out_of_what_was_read(run):
    """Whoever writes a shard holds what was read, and all of it put together."""
    config, by_shard, path = run
    for shard in by_shard:
        segment = sorted_runs.read_segment(path, shard, np.dtype(np.uint16))
        assert segment.token_ids.base is segment.sentence_lengths.base


def test_a_segment_holds_the_entries_of_its_shard_by_key(run):
    config, by_shard, path = run
    assert 40 < len(by_shard) < 64  # some shards got nothing
    for shard in range(config.data.num_shards + 1):
        segment = sorted_runs.read_segment(path, shard, np.dtype(np.uint16))
        entries = sorted(by_shard[shard])
        assert len(segment.keys) == len(segment.copies) == len(entries)
        keys = [int.from_bytes(entry.key, "big") for entry in entries]
        assert [(int(a) << 64) + int(b) for a, b in segment.keys] == keys
        for column, name in ((3, "sentence_lengths"), (4, "token_ids")):
            expected = b"".join(getattr(entry, name) for entry in entries)
            assert segment[column].tobytes() == expected
        in_memory = sorted_runs.to_segment(by_shard[shard], np.dtype(np.uint16))
        for found, expected in zip(segment, in_memory, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_run_is_finished_when_its_counts_are_there(tmp_path, run):
    _, _, path = run
    ((found, counts),) = sorted_runs.finished(str(tmp_path)).items()
    assert (found, counts["read"]) == (path, 103)
    os.remove(path + ".json")
    assert sorted_runs.finished(str(tmp_path)) == {}


def test_the_worker_imports_neither_tensorflow_nor_jax():
    program = (
        "import sys, bert_jax.data.sorted_runs, bert_jax.data.processes;"
        " print({'tensorflow', 'jax'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "set()\n", done.stdout + done.stderr
