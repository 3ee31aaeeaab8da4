"""Losses equal those of a loop over examples; rows of weight 0 do not contribute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.finetuning import losses
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
