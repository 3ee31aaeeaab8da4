"""Scores become cosines; the contrastive loss is that of the whole batch."""

import jax
import numpy as np
import pytest

from bert_jax.distributed import sharding
from bert_jax.errors import ConfigError
from bert_jax.finetuning.tables import Table
from bert_jax.finetuning.tasks import similarity
from tests.conftest import use_mesh
from tests.finetuning.tasks.test_tasks import log_softmax


def test_similarity_is_a_cosine_from_0_to_1():
    table = Table("here", {"a": ["x", "y"], "b": ["z", "w"], "label": ["0", "2.5"]})
    found = similarity.read_pairs(table, ("a", "b"), "label", 5.0)
    assert found.labels is not None and found.labels.tolist() == [0.0, 0.5]
    assert (found.a, found.b) == (["x", "y"], ["z", "w"])
    assert similarity.read_pairs(table, ("a", "b"), "", 5.0).labels is None
    with pytest.raises(ConfigError, match="example 2, has label=2.5; it must be betw"):
        similarity.read_pairs(table, ("a", "b"), "label", 2.0)


def pairs_of_unit_vectors(num_pairs):
    x = np.random.default_rng(1).normal(size=(num_pairs, 2, 8)).astype(np.float32)
    return x / np.linalg.norm(x, axis=2, keepdims=True)


def contrastive(unit_B2D, weights_B):
    """Returns the loss on the current mesh."""
    by_row = sharding.spec("batch")
    arguments = jax.device_put((unit_B2D, {"weights": weights_B}), by_row)
    total, count = jax.jit(similarity.contrastive)(*arguments, 0.05)
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
