"""Every row once an epoch, in an order that the step alone decides."""

import numpy as np
import pytest

from bert_jax.finetuning.data import batches
from tests.conftest import use_mesh


def test_steps_are_those_of_the_released_code():
    assert batches.num_steps(67_349, 3, 32) == 6_313
    assert batches.num_steps(5, 1, 32) == 1


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("num_rows, size", [(10, 4), (12, 4), (3, 8), (500, 3)])
def test_every_row_comes_once_an_epoch(num_rows, size, is_grouped):
    lengths = np.arange(num_rows)[::-1] if is_grouped else None
    shuffled = batches.Shuffled(num_rows, size, 0, lengths)
    steps = range(num_rows * 6 // size)
    rows = np.concatenate([shuffled.of_step(step) for step in steps])
    epochs = rows[: len(rows) // num_rows * num_rows].reshape(-1, num_rows)
    assert len(epochs) >= 5
    assert (np.sort(epochs, axis=1) == np.arange(num_rows)).all()
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1


@pytest.mark.parametrize("lengths", [None, np.arange(1000) % 7])
def test_the_order_is_that_of_the_seed_and_the_step(lengths):
    first = batches.Shuffled(1000, 8, 1, lengths)
    rows = [first.of_step(step).tolist() for step in range(300)]
    assert batches.Shuffled(1000, 8, 1, lengths).of_step(290).tolist() == rows[290]
    assert first.of_step(5).tolist() == rows[5]
    assert batches.Shuffled(1000, 8, 2, lengths).of_step(5).tolist() != rows[5]


def test_grouped_batches_hold_rows_of_one_length():
    """All but those where two epochs meet, and those at the end of what is sorted."""
    lengths = np.random.default_rng(0).integers(1, 4, 10_007)
    shuffled = batches.Shuffled(len(lengths), 8, 0, lengths)
    found = [lengths[shuffled.of_step(step)] for step in range(3 * len(lengths) // 8)]
    mixed = sum(len(set(batch.tolist())) > 1 for batch in found)
    assert mixed < 3 * (2 * len(lengths) / (8 * batches.GROUPED) + 2)
    neighbours = np.diff([batch[0] for batch in found])
    assert np.count_nonzero(neighbours) > len(found) / 2  # long ones among short ones


def test_in_order_the_last_batch_is_filled_up():
    found = [rows.tolist() for rows in batches.in_order(5, 2)]
    assert found == [[0, 1], [2, 3], [4, -1]]


def test_a_process_places_its_part():
    mesh = use_mesh(2, 1, 1)
    batch = {"input_ids": np.arange(8).reshape(4, 2), "weights": np.arange(4.0)}
    whole = batches.place(batch, (0, 1), mesh)
    np.testing.assert_array_equal(whole["input_ids"], batch["input_ids"])
    second = batches.place(batch, (1, 2), mesh)
    np.testing.assert_array_equal(second["weights"], [2.0, 3.0])
