"""Held-out text is judged by the losses that the run weighs."""

import jax
import pytest

from bert_jax.data.corpus import build
from bert_jax.training import evaluation
from bert_jax.training import step as step_lib
from tests.commands import write_text
from tests.conftest import make_config, use_mesh


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("held_out")
    write_text(directory / "text.txt", 300)
    config = make_config(
        data__sources=(f"text:{directory}/*.txt",),
        data__corpus_dir=str(directory / "corpus"),
        loss_weights__next_sentence=0.25,
        eval__num_sequences=16,
    )
    return config, build.find_corpus(config)


def test_the_loss_is_weighed_as_in_training(made):
    config, corpus = made
    mesh = use_mesh(2, 1, 1)
    graphdef, init = step_lib.init_state(
        config, step_lib.optim.make_optimizer(config)[0]
    )
    judge = evaluation.HeldOut(config, corpus, mesh, graphdef)
    assert judge.exists
    line = judge.evaluate(init(), 0)
    assert all(name.startswith("eval_") for name in line)
    expected = line["eval_masked_lm_loss"] + 0.25 * line["eval_next_sentence_loss"]
    assert line["eval_loss"] == pytest.approx(expected)
    assert judge.unigram_entropy > 1 and 0.5 <= judge.next_sentence_majority < 1
    jax.block_until_ready(judge.evaluate(init(), 0))  # its batches are kept
