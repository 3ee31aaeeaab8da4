"""The predictor returns the logits of all rows, in order, on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.finetuning.data.conll import Sentences
from bert_jax.finetuning.predictor import Predictor
from bert_jax.finetuning.tasks import tagging
from bert_jax.model import heads
from tests.conftest import use_mesh
from tests.finetuning import tuned
from tests.models import TOKENIZER

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
    predictor = Predictor(graphdef, length=30, batch_size=2, dtype=F32, mesh=devices)
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
