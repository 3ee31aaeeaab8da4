"""Tests of bert_jax.data.corpus.keyed."""

import random

import numpy as np
import pytest

from bert_jax.data.corpus import keyed
from bert_jax.data.corpus.keyed import Entry
from tests.corpora import make_config, shard_of

UINT16 = np.dtype(np.uint16)


def entries(count, seed=0, num_keys=10**6):
    """Returns random documents; documents with equal keys are equal."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        content = random.Random(rng.randrange(num_keys))
        lengths = [content.randint(1, 5) for _ in range(content.randint(1, 4))]
        ids = [content.randrange(60_000) for _ in range(sum(lengths))]
        found.append(
            Entry(
                content.randbytes(16),
                content.randrange(2),
                np.array(lengths, np.uint32).tobytes(),
                np.array(ids, np.uint16).tobytes(),
            )
        )
    return found


def to_entries(segment):
    """Returns the documents of a segment as a list."""
    result, sentence, token = [], 0, 0
    for record in segment.records:
        after, end = sentence + record["num_sentences"], token + record["num_tokens"]
        result.append(
            Entry(
                record["key"].astype(">u8").tobytes(),
                int(record["copy"]),
                segment.sentence_lengths[sentence:after].tobytes(),
                segment.token_ids[token:end].tobytes(),
            )
        )
        sentence, token = after, end
    assert (sentence, token) == tuple(map(len, segment[1:]))
    return result


def test_documents_are_ordered_by_key():
    found = entries(50)
    assert to_entries(keyed.from_entries(found, UINT16)) == sorted(found)


@pytest.mark.parametrize("count", [0, 1, 40])
def test_distinct_and_select_keep_one_of_equal_documents(count):
    found = entries(count, num_keys=15)
    pieces = [keyed.from_entries(found[i::3], UINT16) for i in range(3)]
    everything = keyed.concatenate(pieces)
    order, num_repeated = keyed.distinct(everything.records)
    assert to_entries(everything.select(order)) == sorted(set(found))
    left = list(found)
    for entry in set(found):
        left.remove(entry)
    assert num_repeated == sum(entry.copy == 0 for entry in left)


@pytest.mark.parametrize("num_tokens", [1, 20, 10**6])
def test_blocks_hold_all_documents_in_order(num_tokens):
    segment = keyed.from_entries(entries(60), UINT16)
    order = np.random.default_rng(0).permutation(60)
    blocks = list(keyed.blocks(segment.records, order, num_tokens))
    np.testing.assert_array_equal(np.concatenate(blocks), order)
    sizes = segment.records["num_tokens"]
    for block in blocks[:-1]:
        assert sizes[block].sum() >= num_tokens > sizes[block[:-1]].sum()


# ------------------------------------------------------------------- key ranges


def keys(count):
    rng = random.Random(count)
    return [rng.randbytes(16) for _ in range(count)]


@pytest.mark.parametrize(
    "fraction, num_validation, num_shards", [(0.2, 1, 4), (0.3, 3, 1), (0.0, 0, 5)]
)
def test_ranges_split_the_keys_evenly(tmp_path, fraction, num_validation, num_shards):
    data = make_config(
        tmp_path, validation_fraction=fraction, num_shards=num_shards, num_streams=1
    ).data
    ranges = keyed.key_ranges(data, num_validation)
    counts = np.bincount([shard_of(ranges, key) for key in keys(6000)])
    assert len(counts) == len(ranges.files) == num_validation + num_shards
    held_out, train = np.split(counts, [num_validation])
    assert held_out.sum() == pytest.approx(6000 * fraction, abs=150)  # sd 36
    for part in filter(len, (held_out, train)):
        assert abs(part - part.mean()).max() < 150


def test_keys_below_the_share_are_held_out(tmp_path):
    """The number of shards must not affect which documents are held out."""
    for num_shards, num_validation in ((2, 1), (9, 4)):
        data = make_config(tmp_path, num_shards=num_shards, num_streams=1).data
        ranges = keyed.key_ranges(data, num_validation)
        for key in keys(1000):
            file = ranges.files[shard_of(ranges, key)]
            held_out = int.from_bytes(key[:8], "big") < 0.2 * 2**64
            assert file.startswith("validation" if held_out else "train")


@pytest.mark.parametrize(
    "fraction, num_tokens, expected",
    [(0.0, 10**12, 0), (0.2, 100, 1), (0.002, 134 * 10**9, 4), (0.002, 10**12, 30)],
)
def test_the_number_of_validation_shards_depends_on_their_size(
    tmp_path, fraction, num_tokens, expected
):
    data = make_config(tmp_path, validation_fraction=fraction).data
    dtype = np.dtype(np.uint16)
    assert keyed.num_validation_shards(data, num_tokens, dtype) == expected
