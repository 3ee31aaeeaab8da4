"""Tests of bert_jax.data.corpus.merging."""

import functools
import os

import numpy as np
import pytest

from bert_jax import storage
from bert_jax.data.corpus import merging, segments, sorted_runs, workers
from tests.data.corpus.test_segments import entries, to_entries

UINT16 = np.dtype(np.uint16)


def write_runs(directory, found, count, group="a"):
    """Writes entries to runs, and returns the paths of the runs."""
    paths = []
    for i in range(count):
        segment = segments.from_entries(found[i::count], UINT16)
        order, num_repeated = segments.distinct(segment.records)
        segment = segments.select(segment, order)
        name = sorted_runs.batch_name(group, i)
        name += sorted_runs.LAST if i == count - 1 else ""
        counts = {"read": len(found[i::count]), "repeated": num_repeated}
        header = sorted_runs.Header(*map(len, segment), counts, {name: 1})
        paths.append(sorted_runs.run_path(str(directory), name))
        columns = b"".join(column.tobytes() for column in segment)
        storage.write(paths[-1], header.to_bytes() + columns)
    return paths


def reduce(directory, num_workers=1):
    run = functools.partial(workers.run, num_workers=num_workers)
    return merging.reduce(str(directory), 10, UINT16, run)


def remove(paths):
    for path in paths:
        os.remove(path)
    return len(paths)


def contents(path):
    run = sorted_runs.Run(path, UINT16)
    header = run.header
    start = np.zeros(4, np.int64)
    stop = [header.num_documents, header.num_sentences, header.num_tokens]
    return to_entries(run.read(start, np.array(stop)))


@pytest.mark.parametrize("slice_bytes, block_tokens", [(2**26, 2**20), (300, 7)])
def test_a_merged_run_holds_each_document_once(
    tmp_path, monkeypatch, slice_bytes, block_tokens
):
    monkeypatch.setattr(merging, "SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(merging, "BLOCK_TOKENS", block_tokens)
    found = entries(300, num_keys=200)
    paths = write_runs(tmp_path, found, 7)
    assert remove(merging.merge(merging.Merge(tuple(paths), 1, UINT16))) == 7
    (name,) = os.listdir(tmp_path)
    assert name.startswith("merged-1-")
    path = str(tmp_path / name)
    assert contents(path) == sorted(set(found))
    header = sorted_runs.Run(path, UINT16).header
    assert header.counts["read"] == 300
    singles = len([e for e in set(found) if e.copy == 0])
    assert header.counts["repeated"] == sum(e.copy == 0 for e in found) - singles
    assert len(header.batches) == 7


@pytest.mark.parametrize("num_workers", [1, 2])
def test_runs_are_merged_until_few_are_left(tmp_path, monkeypatch, num_workers):
    monkeypatch.setattr(merging, "MAX_PIECES", 40)
    monkeypatch.setattr(merging, "FAN_IN", 3)
    found = entries(200, num_keys=150)
    write_runs(tmp_path, found, 50)
    paths = reduce(tmp_path, num_workers)
    assert len(paths) <= 4 and {str(tmp_path / n) for n in os.listdir(tmp_path)} == set(
        paths
    )
    assert {entry for path in paths for entry in contents(path)} == set(found)
    assert reduce(tmp_path, num_workers) == paths


def test_few_runs_are_not_merged(tmp_path):
    paths = write_runs(tmp_path, entries(20), 6)
    assert reduce(tmp_path) == sorted(paths)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("function", ["replace", "remove"])
def test_killed_at_any_file_a_merge_resumes(tmp_path, monkeypatch, function):
    monkeypatch.setattr(merging, "MAX_PIECES", 20)
    monkeypatch.setattr(merging, "FAN_IN", 4)
    found = entries(60, num_keys=50)
    write_runs(tmp_path, found, 20)
    done, original = 0, getattr(os, function)

    def killed(*args):
        nonlocal done
        done += 1
        if done % 3 == 0:
            raise Killed
        original(*args)

    num_kills = 0
    while True:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, function, killed)
                paths = reduce(tmp_path)
            break
        except Killed:
            num_kills += 1
            before = merging.Finished(str(tmp_path), UINT16)
            assert before.has_group("a")
    assert num_kills > 2 and len(paths) == 2
    headers = [sorted_runs.Run(path, UINT16).header for path in paths]
    assert sum(len(header.batches) for header in headers) == 20
    assert sum(header.counts["read"] for header in headers) == 60
    assert {entry for path in paths for entry in contents(path)} == set(found)


def test_merged_runs_with_other_groups_are_removed(tmp_path):
    a = write_runs(tmp_path, entries(30), 3, "a")
    b = write_runs(tmp_path, entries(30, seed=1), 2, "b")
    write_runs(tmp_path, entries(30, seed=2), 2, "c")
    remove(merging.merge(merging.Merge((*a, b[0]), 1, UINT16)))
    finished = merging.Finished(str(tmp_path), UINT16)
    assert all(map(finished.has_group, "abc")) and len(finished.batches) == 7
    finished.remove_all_but({"b", "c"})
    assert not finished.has_group("a") and not finished.has_group("b")
    assert finished.has_group("c")
    assert finished.batches == {"b-000001-last", "c-000000", "c-000001-last"}
    assert len(os.listdir(tmp_path)) == 3


def simulate(num_runs, num_shards, run_bytes):
    """Counts the opens, reads and rewrites of merging and writing shards.

    Uses the planning code on names alone. A run's bytes are of token ids.
    """
    levels = {f"run-{i:06d}": 0 for i in range(num_runs)}
    sizes = dict.fromkeys(levels, run_bytes)
    opens = reads = rewritten = 0
    while groups := merging.next_merges(levels, num_shards):
        for number, group in enumerate(groups):
            size = sum(sizes.pop(name) for name in group)
            slices = merging.num_slices(size // 2, UINT16)
            # The header, all records, and a piece of each column for each slice.
            opens += len(group) * (2 + slices)
            reads += len(group) * (3 + 3 * slices)
            rewritten += size
            level = 1 + max(levels.pop(name) for name in group)
            levels[f"merged-{level}-{number}"] = level
            sizes[f"merged-{level}-{number}"] = size
    opens += len(levels) * (2 + num_shards)
    reads += len(levels) * (3 + 3 * num_shards)
    return len(levels), opens, reads, rewritten


def test_operations_for_a_terabyte():
    """119,000 runs of 8 MiB of text, 4,096 training shards and a held-out one.

    Reading a piece of each run for each shard would be 488 million opens.
    """
    num_runs, opens, reads, rewritten = simulate(119_000, 4_097, 3_650_000)
    assert num_runs == 465
    assert opens < 4e6 and reads < 12e6
    assert rewritten == 119_000 * 3_650_000  # each document is rewritten once
    assert simulate(500, 4_097, 3_650_000)[3] == 0
