"""Tests of the task heads: parity with transformers, dropout, padding and meshes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.distributed import sharding
from bert_jax.finetuning.tasks import TASKS
from bert_jax.interop import weight_names
from bert_jax.interop.weight_names import HUGGINGFACE
from bert_jax.model import heads
from bert_jax.model.dropout import DropoutKey, row_indices
from tests.conftest import slow, use_mesh
from tests.finetuning import tuned

F32 = jnp.dtype(jnp.float32)
# The dual encoder is compared in interop/test_sentence_transformers.py.
every_kind = pytest.mark.parametrize("kind", sorted(TASKS.keys() - {"similarity"}))
MODULES = TASKS.keys() - {"regression", "multi_label"}
every_module = pytest.mark.parametrize("kind", sorted(MODULES))
# These biases add the same number to every input of a softmax, so their gradients are
# rounding errors.
NO_GRADIENT = {
    "question_answering": ("qa_outputs.bias", "layer.1.output.LayerNorm.bias"),
    "multiple_choice": ("classifier.bias",),
}


def loss_and_gradients(kind, graphdef, params, batch):
    @jax.jit
    def value_and_grad(params, batch):
        def loss(params):
            bert = nnx.merge(graphdef, params)
            outputs = bert(batch, dropout_key=None, dtype=F32)
            total, count = tuned.make_task(kind).loss(outputs, batch)
            return total / count

        return jax.value_and_grad(loss)(params)

    return value_and_grad(params, batch)


def key_of(seed):
    """Returns the dropout key of a batch of `tuned.make_batch`."""
    return DropoutKey(jax.random.key(seed), row_indices(4))


@functools.partial(jax.jit, static_argnames="graphdef")
def logits_of(graphdef, params, batch, key=None):
    return nnx.merge(graphdef, params)(batch, dropout_key=key, dtype=F32).logits


def load_in_transformers(kind, directory):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    architecture = TASKS[kind].head.architecture
    return getattr(transformers, architecture).from_pretrained(
        directory, attn_implementation="eager", output_loading_info=True
    )


def their_inputs(batch):
    import torch

    names = {
        "input_ids": "input_ids",
        "segment_ids": "token_type_ids",
        "sequence_ids": "attention_mask",
        "labels": "labels",
        "start_positions": "start_positions",
        "end_positions": "end_positions",
    }
    inputs = {
        theirs: torch.tensor(np.asarray(batch[ours]))
        for ours, theirs in names.items()
        if ours in batch
    }
    return {
        name: x if x.dtype == torch.float32 else x.long() for name, x in inputs.items()
    }


def their_logits(kind, found):
    import torch

    if kind == "question_answering":
        return torch.stack([found.start_logits, found.end_logits], -1).detach().numpy()
    return found.logits.detach().numpy()


@every_kind
def test_logits_loss_and_gradients_equal_those_of_transformers(kind, tmp_path):
    """Exports the model and loads it in transformers."""
    _, graphdef, params = tuned.write(tmp_path, kind)
    theirs, info = load_in_transformers(kind, tmp_path)
    assert not any(info.values()), info  # missing, unexpected or mismatched keys
    batch = tuned.make_batch(kind)
    found = theirs.eval()(**their_inputs(batch))
    found.loss.backward()

    logits = logits_of(graphdef, params, batch)
    np.testing.assert_allclose(logits, their_logits(kind, found), atol=2e-5)
    loss, gradients = loss_and_gradients(kind, graphdef, params, batch)
    np.testing.assert_allclose(float(loss), found.loss.item(), rtol=1e-4)
    gradients = weight_names.rename(gradients, HUGGINGFACE)
    expected = {name: x.grad.numpy() for name, x in theirs.named_parameters()}
    assert set(gradients) == set(expected)
    # torch drops the gradient of the padding token's embedding.
    word = "bert.embeddings.word_embeddings.weight"
    gradients[word] = gradients[word][1:]
    expected[word] = expected[word][1:]
    largest = max(map(np.linalg.norm, expected.values()))
    for name, gradient in gradients.items():
        error = np.linalg.norm(gradient - expected[name])
        if name.endswith(("key.bias", *NO_GRADIENT.get(kind, ()))):
            assert np.linalg.norm(gradient) < 1e-6 * largest, name
            assert np.linalg.norm(expected[name]) < 1e-6 * largest, name
        else:
            assert error < 1e-4 * np.linalg.norm(expected[name]), name


@every_module
@pytest.mark.slow
def test_dropout_depends_on_the_key_and_applies_to_the_head(kind):
    config, graphdef, params = tuned.build(kind)
    batch = tuned.make_batch(kind)
    first, again, other = (
        logits_of(graphdef, params, batch, key_of(seed)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    without = logits_of(graphdef, params, batch)
    # The encoder has no dropout in this config, so any difference is the head's.
    assert config.hidden_dropout_prob == 0.0
    differs = kind not in ("question_answering", "similarity")
    assert (np.abs(first - other).max() > 1e-3) == differs
    assert (np.abs(first - without).max() > 1e-3) == differs


@pytest.mark.parametrize(
    "kind",
    [x if x in ("similarity", "tagging") else slow(x) for x in sorted(MODULES)],
)
def test_padding_does_not_change_logits_of_real_tokens(kind):
    _, graphdef, params = tuned.build(kind)
    batch = tuned.make_batch(kind)
    changed = batch | {
        "input_ids": np.where(batch["sequence_ids"], batch["input_ids"], 7)
    }
    found, expected = (
        np.asarray(logits_of(graphdef, params, x)) for x in (changed, batch)
    )
    if kind in ("tagging", "question_answering"):
        real_BT = batch["sequence_ids"] > 0
        found, expected = found[real_BT], expected[real_BT]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tagging", "multiple_choice", "similarity"])
def test_loss_and_gradients_are_the_same_on_a_mesh(kind):
    _, graphdef, params = tuned.build(kind)
    batch = tuned.make_batch(kind)
    expected, expected_gradients = loss_and_gradients(kind, graphdef, params, batch)
    mesh = use_mesh(2, 2, 2)
    _, graphdef, params = tuned.build(kind)
    placed = sharding.place_batch(batch, mesh)
    loss, gradients = loss_and_gradients(kind, graphdef, params, placed)
    np.testing.assert_allclose(float(loss), float(expected), rtol=1e-5)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(
            np.asarray(x), np.asarray(y), rtol=1e-3, atol=1e-5
        ),
        gradients,
        expected_gradients,
    )


def test_new_classifier_has_small_weights_and_zero_biases():
    config = tuned.make_config().model
    head = tuned.HEADS["tagging"]
    _, params = heads.build(config, tuned.VOCAB_SIZE, head, jax.random.key(0))
    kernel = np.asarray(params["classifier"]["kernel"][...])
    assert kernel.shape == (32, 3)
    assert 0.01 < kernel.std() < 0.02 and np.abs(kernel).max() <= 0.04
    assert not np.asarray(params["classifier"]["bias"][...]).any()
    assert "pooler" not in params["bert"]
