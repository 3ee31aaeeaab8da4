"""Tests of bert_jax.training.evaluation."""

import jax
import numpy as np
import pytest

from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.training import evaluation
from bert_jax.training import step as step_lib
from tests import corpora
from tests.conftest import use_mesh


@pytest.mark.slow
def test_the_loss_has_the_weights_of_training(tmp_path):
    changes = {"loss_weights__next_sentence": 0.25, "eval__num_sequences": 16}
    config, corpus = corpora.of_text(tmp_path, **changes)
    mesh = use_mesh(2, 1, 1)
    graphdef, init = step_lib.init_state(config)
    held_out = evaluation.HeldOut(
        config, corpus, mesh, graphdef, lambda params: {"probe/x": 7.0}
    )
    assert held_out.exists
    line = held_out.evaluate(init(), 0)
    assert line.pop("probe/x") == 7
    assert all(name.startswith("eval_") for name in line)
    expected = line["eval_masked_lm_loss"] + 0.25 * line["eval_next_sentence_loss"]
    assert line["eval_loss"] == pytest.approx(expected)
    assert evaluation.unigram_entropy(corpus) > 1
    assert line["eval_next_sentence_majority"] == evaluation.next_sentence_majority(
        evaluation.eval_batches(corpus, config, 0)
    )
    jax.block_until_ready(held_out.evaluate(init(), 0))  # with cached batches


def test_held_out_masks_do_not_depend_on_the_training_rate(trained):
    """A batch holds no larger array than its own rows."""
    config = workdir_lib.read_config(str(trained / "run"))
    corpus = corpus_lib.read(config)
    rates = {"masked_lm_prob": 0.3, "final_masked_lm_prob": 0.1}
    other = corpora.changed(config, "data", **rates)
    plain, found = (evaluation.eval_batches(corpus, c, 0) for c in (config, other))
    for a, b in zip(plain, found, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
            assert b[name].base is None
    often = corpora.changed(config, "eval", masked_lm_prob=0.3)
    more = evaluation.eval_batches(corpus, often, 0)
    masks = [sum(b["masked_lm_weights"].sum() for b in x) for x in (plain, more)]
    assert masks[1] > masks[0]


@pytest.mark.parametrize(
    ("labels", "weights", "majority"),
    [
        ([[1], [1], [0], [1]], [[1], [1], [1], [1]], 0.75),
        ([[0], [0], [0], [1]], [[1], [0], [0], [1]], 0.5),  # two rows are padding
        ([[0], [0]], [[0], [0]], None),  # rows of one segment
    ],
)
def test_majority_is_the_share_of_the_more_frequent_label(labels, weights, majority):
    batch = {
        "next_sentence_labels": np.array(labels),
        "next_sentence_weights": np.array(weights, np.float32),
    }
    assert evaluation.next_sentence_majority([batch]) == majority
