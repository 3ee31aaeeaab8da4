"""Every row once an epoch, in an order that the step alone decides."""

import numpy as np
import pytest

from bert_jax.tasks import batches
from tests.conftest import use_mesh


def test_steps_are_those_of_the_released_code():
    assert batches.num_steps(67_349, 3, 32) == 6_313
    assert batches.num_steps(5, 1, 32) == 1


@pytest.mark.parametrize("num_rows, size", [(10, 4), (12, 4), (3, 8)])
def test_every_row_comes_once_an_epoch(num_rows, size):
    steps = range(num_rows * 6 // size)
    rows = np.concatenate([batches.of_step(num_rows, size, s, 0) for s in steps])
    epochs = rows[: len(rows) // num_rows * num_rows].reshape(-1, num_rows)
    assert len(epochs) >= 5
    assert (np.sort(epochs, axis=1) == np.arange(num_rows)).all()
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1


def test_the_order_is_that_of_the_seed():
    first = batches.of_step(1000, 8, 5, 1).tolist()
    assert first == batches.of_step(1000, 8, 5, 1).tolist()
    assert first != batches.of_step(1000, 8, 5, 2).tolist()


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
