"""Every row is visited once per epoch, in an order that depends on the step alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.finetuning import batches
from bert_jax.finetuning.tasks import tagging
from bert_jax.finetuning.tasks.tagging import Sentences
from bert_jax.model import heads
from tests.conftest import use_mesh
from tests.finetuning import tuned
from tests.models import TOKENIZER


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("num_rows, size", [(10, 4), (12, 4), (3, 8), (500, 3)])
def test_every_row_is_visited_once_per_epoch(num_rows, size, is_grouped):
    lengths = np.arange(num_rows)[::-1] if is_grouped else None
    shuffled = batches.Shuffled(num_rows, size, 0, lengths)
    steps = range(num_rows * 6 // size)
    rows = np.concatenate([shuffled.of_step(step) for step in steps])
    epochs = rows[: len(rows) // num_rows * num_rows].reshape(-1, num_rows)
    assert len(epochs) >= 5
    assert (np.sort(epochs, axis=1) == np.arange(num_rows)).all()
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1


@pytest.mark.parametrize("lengths", [None, np.arange(1000) % 7])
def test_the_order_depends_on_seed_and_step_alone(lengths):
    first = batches.Shuffled(1000, 8, 1, lengths)
    rows = [first.of_step(step).tolist() for step in range(300)]
    assert batches.Shuffled(1000, 8, 1, lengths).of_step(290).tolist() == rows[290]
    assert first.of_step(5).tolist() == rows[5]
    assert batches.Shuffled(1000, 8, 2, lengths).of_step(5).tolist() != rows[5]


def test_grouped_batches_hold_rows_of_one_length():
    """Except at the boundary between epochs and at the end of a sorted group."""
    lengths = np.random.default_rng(0).integers(1, 4, 10_007)
    shuffled = batches.Shuffled(len(lengths), 8, 0, lengths)
    found = [lengths[shuffled.of_step(step)] for step in range(3 * len(lengths) // 8)]
    mixed = sum(len(set(batch.tolist())) > 1 for batch in found)
    assert mixed < 3 * (2 * len(lengths) / (8 * batches.GROUP_BATCHES) + 2)
    neighbours = np.diff([batch[0] for batch in found])
    assert np.count_nonzero(neighbours) > len(found) / 2  # batches are in random order


def test_rows_of_similar_length_share_a_batch():
    """Otherwise one long row would pad its whole batch."""
    lengths = np.array([20, 3, 5, 20, 3, 4])
    found = [rows.tolist() for rows in batches.by_length(lengths, 4)]
    assert found == [[1, 4, 5, 2], [0, 3, -1, -1]]


def test_a_process_places_its_part():
    mesh = use_mesh(2, 1, 1)
    batch = {"input_ids": np.arange(8).reshape(4, 2), "weights": np.arange(4.0)}
    whole = batches.place(batch, (0, 1), mesh)
    np.testing.assert_array_equal(whole["input_ids"], batch["input_ids"])
    second = batches.place(batch, (1, 2), mesh)
    np.testing.assert_array_equal(second["weights"], [2.0, 3.0])


F32 = jnp.dtype("float32")
SENTENCES = [[f"w{i}" for i in range(n)] for n in (3, 25, 1, 17, 8)]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)])
def test_logits_equal_those_of_each_row_alone(mesh):
    """Logits of positions beyond the batch's length are 0."""
    devices = use_mesh(*mesh)
    _, graphdef, params = tuned.build("tagging")
    found = Sentences("made up", SENTENCES, None)
    names = tuned.HEADS["tagging"].labels
    features = tagging.from_sentences(found, names, TOKENIZER, 30, "labels")
    batching = batches.Batching(30, 2, F32, devices)
    predictor = batches.Predictor(graphdef, batching)
    counts: list[int] = []
    logits_NTC = predictor(params, features, counts.append)
    # The mesh may require larger batches; padding rows are not counted.
    assert sum(counts) == 5 and (devices.size > 1 or counts == [2, 2, 1])
    assert logits_NTC.shape == (5, 30, 3)
    model = nnx.merge(graphdef, params)
    for row, words in enumerate(SENTENCES):
        batch = features.batch(np.full(4, row))
        batch = {name: batch[name] for name in heads.INPUTS}
        expected = model(batch, dropout_key=None, dtype=F32).logits
        num = len(words) + 2
        np.testing.assert_allclose(
            logits_NTC[row, :num], jax.device_get(expected)[0, :num], atol=1e-5
        )
    if devices.size == 1:  # rows 5 and 4 share a batch, and rows 1 and 3
        assert logits_NTC[4, 16:].any() and not logits_NTC[0, 16:].any()
