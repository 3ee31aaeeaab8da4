"""Tests of the packing in bert_jax.data.batches.pairs."""

import numpy as np
import pytest

from bert_jax.data.batches import pairs


def make_lengths(num_pairs, length, seed=0, full=0.3):
    """Returns random lengths, some of which fill a row."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, length + 1, num_pairs)
    return np.where(rng.random(num_pairs) < full, length, lengths)


def best_fit(lengths, length, per_row):
    """Returns the number of rows if pairs are packed one at a time, longest first."""
    rows = []
    for pair in sorted(lengths, reverse=True):
        fitting = [row for row in rows if row[0] >= pair and row[1] < per_row]
        if fitting:
            row = min(fitting)
            row[0], row[1] = row[0] - pair, row[1] + 1
        else:
            rows.append([length - pair, 1])
    return len(rows)


@pytest.mark.parametrize("per_row", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("length", [16, 128, 512])
def test_rows_hold_every_pair_once_and_fit(length, per_row):
    lengths = make_lengths(5000, length)
    rows = pairs.pack(lengths, length, per_row)
    assert rows.shape == (pairs.num_rows(lengths, length, per_row), per_row)
    used = rows >= 0
    assert sorted(rows[used]) == list(range(5000))
    assert np.where(used, lengths[rows], 0).sum(1).max() <= length
    # There is no empty row, and empty places come last.
    assert (used == (np.arange(per_row) < used.sum(1)[:, None])).all()
    assert used[:, 0].all()


@pytest.mark.parametrize("per_row", [2, 3, 8])
def test_the_number_of_rows_equals_that_of_packing_pairs_one_at_a_time(per_row):
    for seed in range(5):
        lengths = make_lengths(400, 128, seed)
        rows = pairs.num_rows(lengths, 128, per_row)
        assert rows <= 1.01 * best_fit(lengths, 128, per_row)
        assert rows >= max(lengths.sum() / 128, 400 / per_row)


def test_enough_pairs_leave_hardly_any_padding():
    lengths = make_lengths(20_000, 512)
    rows = pairs.num_rows(lengths, 512, 8)
    assert lengths.sum() / (rows * 512) > 0.99


def test_pairs_of_one_length_are_packed_in_order():
    """A shuffle before packing therefore determines which of them share a row."""
    lengths = np.full(9, 10)
    rows = pairs.pack(lengths, 32, 3)
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_few_and_no_pairs():
    assert pairs.pack(np.array([7]), 8, 4).tolist() == [[0, -1, -1, -1]]
    assert pairs.pack(np.array([4, 5]), 8, 4).shape == (2, 4)
    assert len(pairs.pack(np.array([], int), 8, 4)) == 0
