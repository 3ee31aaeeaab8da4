"""Losses equal those of a loop over examples; rows of weight 0 do not contribute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.distributed import sharding
from bert_jax.finetuning import losses
from tests.conftest import use_mesh
from tests.finetuning import tuned


def log_softmax(x):
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def expected_of(kind, logits, batch):
    """Returns the terms of the sum, one for each counted item."""
    terms = []
    for row, weight in enumerate(batch["weights"]):
        if not weight:
            continue
        if kind == "regression":
            terms.append((logits[row, 0] - batch["labels"][row]) ** 2)
        elif kind == "multi_label":
            p = 1 / (1 + np.exp(-logits[row]))
            y = batch["labels"][row]
            terms += list(-y * np.log(p) - (1 - y) * np.log(1 - p))
        elif kind == "tagging":
            for place, label in enumerate(batch["labels"][row]):
                if label != -100:
                    terms.append(-log_softmax(logits[row, place])[label])
        elif kind == "question_answering":
            start, end = log_softmax(logits[row].T)
            ends = batch["start_positions"][row], batch["end_positions"][row]
            terms.append(-(start[ends[0]] + end[ends[1]]) / 2)
        elif kind == "similarity":
            terms.append((logits[row] - batch["labels"][row]) ** 2)
        else:
            terms.append(-log_softmax(logits[row])[batch["labels"][row]])
    return terms


@pytest.mark.parametrize("kind", losses.LOSSES)
def test_sum_and_count(kind):
    batch = tuned.make_batch(kind)
    batch["weights"][1] = 0.0
    shape = {
        "regression": (4, 1),
        "similarity": (4,),
        "tagging": (4, 16, 3),
        "question_answering": (4, 16, 2),
    }.get(kind, (4, 3))
    logits = np.random.default_rng(0).normal(0, 2, shape).astype(np.float32)
    total, count = jax.jit(losses.LOSSES[kind])(jnp.asarray(logits), batch)
    terms = expected_of(kind, logits.astype(np.float64), batch)
    assert float(count) == len(terms)
    np.testing.assert_allclose(float(total), sum(terms), rtol=1e-5)


def test_multi_label_is_precise_at_large_logits():
    batch = {"labels": jnp.array([[1.0, 0.0]]), "weights": jnp.ones(1)}
    logits = jnp.array([[-200.0, 300.0]])
    assert float(losses.multi_label(logits, batch)[0]) == 500.0


def pairs_of_unit_vectors(num_pairs):
    x = np.random.default_rng(1).normal(size=(num_pairs, 2, 8)).astype(np.float32)
    return x / np.linalg.norm(x, axis=2, keepdims=True)


def contrastive(unit_B2D, weights_B):
    """Returns the loss on the current mesh."""
    by_row = sharding.spec("batch")
    arguments = jax.device_put((unit_B2D, {"weights": weights_B}), by_row)
    total, count = jax.jit(losses.contrastive)(*arguments, 0.05)
    return float(total), float(count)


def test_the_negatives_are_the_other_pairs_of_the_whole_batch():
    unit_B2D = pairs_of_unit_vectors(8)
    weights_B = np.array([1, 1, 0, 1, 1, 1, 1, 0], np.float32)
    first, second = (unit_B2D[weights_B > 0, i].astype(np.float64) for i in (0, 1))
    expected = -np.trace(log_softmax(first @ second.T / 0.05))
    for sizes in ((1, 1, 1), (2, 2, 1)):  # negatives of other devices
        use_mesh(*sizes)
        total, count = contrastive(unit_B2D, weights_B)
        assert count == 6
        np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_the_contrastive_loss_is_that_of_sentence_transformers():
    torch = pytest.importorskip("torch")
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses as theirs

    use_mesh(1, 1, 1)
    unit_B2D = pairs_of_unit_vectors(6)
    loss = theirs.MultipleNegativesRankingLoss(torch.nn.Identity(), scale=1 / 0.05)
    embeddings = [torch.tensor(unit_B2D[:, i]) for i in (0, 1)]
    expected = float(loss.compute_loss_from_embeddings(embeddings, None))
    total, count = contrastive(unit_B2D, np.ones(6, np.float32))
    np.testing.assert_allclose(total / count, expected, rtol=1e-5)
