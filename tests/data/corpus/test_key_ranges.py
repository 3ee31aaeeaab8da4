"""Tests of bert_jax.data.corpus.key_ranges."""

import random

import numpy as np
import pytest

from bert_jax.data.corpus import key_ranges
from tests.corpora import make_config, shard_of


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
    ranges = key_ranges.ranges(data, num_validation)
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
        ranges = key_ranges.ranges(data, num_validation)
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
    assert key_ranges.num_validation_shards(data, num_tokens, dtype) == expected


def test_file_names(tmp_path):
    data = make_config(tmp_path, num_shards=3, num_streams=1).data
    assert key_ranges.ranges(data, 2).files == [
        "validation-00000-of-00002",
        "validation-00001-of-00002",
        "train-00000-of-00003",
        "train-00001-of-00003",
        "train-00002-of-00003",
    ]
