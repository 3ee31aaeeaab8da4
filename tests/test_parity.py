"""The same numbers as transformers' BertForPreTraining in torch, gradients too.

Those of a tiny model are read from a file, see tests/golden; the released sizes need
torch. Shapes as in bert.py.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax import config as config_lib
from bert_jax.config import LossWeightsConfig
from bert_jax.configs import base, large, tiny
from bert_jax.data.sources import embedded
from bert_jax.data.tokenizers import training
from bert_jax.interop import weight_names
from bert_jax.interop.weight_names import HUGGINGFACE
from bert_jax.model import bert as bert_lib
from bert_jax.model import parameters
from bert_jax.training import losses
from tests.conftest import make_config
from tests.golden import tiny_bert

F32, BF16 = jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)
OUTPUTS = ("hidden_states", "pooled", "masked_lm_logits", "next_sentence_logits")


def parameters_from(tensors, config):
    """Returns the structure and parameters that Hugging Face's tensors make."""
    graphdef, params = nnx.split(
        nnx.eval_shape(
            lambda: bert_lib.BertForPreTraining(
                config.model, config.tokenizer.vocab_size, nnx.Rngs(params=0)
            )
        )
    )
    arrays = []
    for ours in parameters.leaves(params):
        array = HUGGINGFACE.lay_out(ours, tensors[HUGGINGFACE.name(ours)])
        arrays.append(jnp.asarray(array, F32))
    return graphdef, jax.tree.unflatten(jax.tree.structure(params), arrays)


def with_random_vectors(params):
    """Biases start at 0 and scales at 1, where a swapped or lost one goes unseen."""
    random = np.random.default_rng(1)

    def change(x):
        return x + random.normal(0, 0.05, x.shape).astype(x.dtype) * (x.ndim == 1)

    return jax.tree.map(change, params)


def our_batch(inputs):
    """Returns Hugging Face's inputs as a batch of ours."""
    B, T = inputs["input_ids"].shape
    is_masked_BT = inputs["labels"] != -100
    P = is_masked_BT.sum(axis=1).max()
    # Masked tokens first, in their order, and then others for the unused places.
    positions_BP = np.argsort(~is_masked_BT, axis=1, kind="stable")[:, :P]
    weights_BP = np.take_along_axis(is_masked_BT, positions_BP, axis=1)
    ids_BP = np.take_along_axis(inputs["labels"], positions_BP, axis=1)
    batch = {
        "input_ids": inputs["input_ids"],
        "segment_ids": inputs["token_type_ids"],
        "position_ids": np.broadcast_to(np.arange(T), (B, T)),
        "sequence_ids": inputs["attention_mask"],
        "masked_lm_positions": positions_BP,
        "masked_lm_ids": np.where(weights_BP, ids_BP, 0),
        "next_sentence_positions": np.zeros((B, 1)),
        "next_sentence_labels": inputs["next_sentence_label"][:, None],
    }
    batch = {name: jnp.asarray(rows, jnp.int32) for name, rows in batch.items()}
    batch["masked_lm_weights"] = jnp.asarray(weights_BP, F32)
    batch["next_sentence_weights"] = jnp.ones((B, 1), F32)
    return batch


@functools.partial(jax.jit, static_argnames=("graphdef", "dtype"))
def outputs(graphdef, params, batch, dtype):
    """Returns every state and logit under the names of tests/golden/reference.py.

    States are those of all tokens: of the embeddings, after each layer, and pooled.
    Logits are those at the batch's masked positions.
    """
    bert = nnx.merge(graphdef, params)
    hidden_states = bert.bert.states(batch, dropout_key=None, dtype=dtype)
    masked_lm_BPV, next_sentence_BK2 = bert(batch, dropout_key=None, dtype=dtype)
    return {
        "hidden_states": jnp.stack(hidden_states),
        "pooled": bert.bert.pool(hidden_states[-1][:, :1])[:, 0],
        "masked_lm_logits": masked_lm_BPV,
        "next_sentence_logits": next_sentence_BK2[:, 0],
    }


def loss_and_gradients(graphdef, params, batch):
    """Returns what the train step would, the gradients under Hugging Face's names."""

    @jax.jit
    @jax.value_and_grad
    def value_and_grad(params):
        sums = losses.loss_sums(
            graphdef, params, batch, True, dropout_key=None, dtype=F32
        )
        weights = LossWeightsConfig(masked_lm=1.0, next_sentence=1.0, z_loss=0.0)
        means = losses.mean_metrics(sums, losses.loss_counts(batch))
        return losses.total_loss(means, weights)

    loss, gradients = value_and_grad(params)
    return float(loss), weight_names.rename(gradients, HUGGINGFACE)


def relative_error(found, expected):
    difference = np.asarray(found, np.float32) - expected
    return np.linalg.norm(difference) / np.linalg.norm(expected)


def assert_near(found, expected, atol):
    np.testing.assert_allclose(
        np.asarray(found, np.float32), expected, rtol=0, atol=atol
    )


def assert_outputs_equal(found, expected):
    for name in OUTPUTS:
        assert_near(found[name], expected[name], 2e-5)


def assert_outputs_near_in_bfloat16(found, expected):
    """In norm where numbers are large: from 4 on, those of bfloat16 are 3e-2 apart."""
    assert_near(found["next_sentence_logits"], expected["next_sentence_logits"], 2e-2)
    for name in ("pooled", "masked_lm_logits"):
        assert relative_error(found[name], expected[name]) < 2e-2, name
    for found_BTD, expected_BTD in zip(
        found["hidden_states"], expected["hidden_states"], strict=True
    ):
        assert relative_error(found_BTD, expected_BTD) < 2e-2


def assert_gradients_equal(found, expected):
    assert set(found) == set(expected)
    for name, gradient in found.items():
        if name.endswith("key.bias"):
            # It shifts all scores of a query alike, which the softmax takes out: what
            # there is of a gradient is rounding.
            size = np.linalg.norm(expected[name.replace("key", "query")])
            assert np.linalg.norm(gradient) < 1e-4 * size, name
            assert np.linalg.norm(expected[name]) < 1e-4 * size, name
        else:
            assert relative_error(gradient, expected[name]) < 1e-4, name


@functools.cache
def golden():
    with np.load(tiny_bert.FILE) as arrays:
        return dict(arrays)


def golden_part(beginning):
    return {
        name.removeprefix(beginning): array
        for name, array in golden().items()
        if name.startswith(beginning)
    }


@functools.cache
def golden_model(activation):
    gradients = golden_part(f"{activation}/gradient/")
    weights = tiny_bert.draw_weights({k: v.shape for k, v in gradients.items()})
    sizes = tiny_bert.SIZES | {"hidden_act": activation}
    config = make_config(
        tokenizer__vocab_size=tiny_bert.VOCAB_SIZE,
        **{f"model__{name}": size for name, size in sizes.items()},
    )
    return parameters_from(weights, config)


def golden_outputs(activation, dtype):
    batch = our_batch(golden_part("inputs/"))
    found = outputs(*golden_model(activation), batch, dtype)
    is_used_BP = np.asarray(batch["masked_lm_weights"] > 0)
    logits_BPV = np.asarray(found["masked_lm_logits"])
    return found | {"masked_lm_logits": logits_BPV[is_used_BP]}


golden_cases = pytest.mark.parametrize("activation", tiny_bert.ACTIVATIONS)


@golden_cases
def test_golden_outputs(activation):
    expected = golden_part(f"{activation}/")
    assert_outputs_equal(golden_outputs(activation, F32), expected)


@golden_cases
def test_golden_outputs_in_bfloat16(activation):
    expected = golden_part(f"{activation}/")
    found = golden_outputs(activation, BF16)
    assert_outputs_near_in_bfloat16(found, expected)
    assert_near(found["masked_lm_logits"], expected["masked_lm_logits"], 2e-2)


@golden_cases
def test_golden_loss_and_gradients(activation):
    batch = our_batch(golden_part("inputs/"))
    loss, gradients = loss_and_gradients(*golden_model(activation), batch)
    np.testing.assert_allclose(loss, golden()[f"{activation}/loss"], rtol=1e-4)
    assert_gradients_equal(gradients, golden_part(f"{activation}/gradient/"))


@pytest.mark.slow
def test_golden_file_is_what_its_script_makes():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.golden import make_bert_golden

    made = make_bert_golden.make()
    assert set(made) == set(golden())
    for name, array in made.items():
        if not name.startswith("version/"):
            np.testing.assert_allclose(
                array, golden()[name], rtol=1e-5, atol=1e-6, err_msg=name
            )


@functools.cache
def english_inputs():
    """Returns pairs of sentences, masked, two of which belong together.

    In the form that transformers takes; the ids are those of a small vocabulary.
    """
    config = config_lib.from_config_dict(tiny.get_config()).tokenizer
    documents = [document for _, document in itertools.islice(embedded.documents(), 60)]
    tokenizer = training.train(documents, dataclasses.replace(config, vocab_size=2000))
    encode = tokenizer.encoder()
    cls, sep, mask = (tokenizer.id(token) for token in ("[CLS]", "[SEP]", "[MASK]"))
    B, T = 4, 64
    inputs = {
        name: np.zeros((B, T), np.int64)
        for name in ("input_ids", "token_type_ids", "attention_mask")
    }
    inputs["labels"] = np.full((B, T), -100)
    inputs["next_sentence_label"] = np.arange(B) % 2
    documents = [document for document in documents if len(document) > 1]
    for row, is_random in enumerate(inputs["next_sentence_label"]):
        following = documents[2 * row + is_random][1]
        a, b = (list(ids) for ids in encode([documents[2 * row][0], following]))
        ids = np.array([cls, *a[:30], sep, *b[:31], sep])
        is_word = np.isin(ids, [cls, sep], invert=True)
        masked = np.flatnonzero(is_word)[row :: 7 - row]
        inputs["labels"][row, masked] = ids[masked]
        ids[masked] = mask
        inputs["input_ids"][row, : len(ids)] = ids
        inputs["attention_mask"][row, : len(ids)] = 1
        inputs["token_type_ids"][row, len(a[:30]) + 2 : len(ids)] = 1
    return inputs


def at_every_token(batch):
    """Returns the batch with logits asked for at every token, for no loss."""
    B, T = batch["input_ids"].shape
    return batch | {"masked_lm_positions": jnp.tile(jnp.arange(T), (B, 1))}


def random_parameters(config):
    @jax.jit
    def build(key):
        return bert_lib.build(config.model, config.tokenizer.vocab_size, key)[1]

    return with_random_vectors(build(jax.random.key(0)))


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "num_layers"), [(base, 12), (large, 2)])
def test_english_text_at_released_sizes(sizes, num_layers):
    """All states, logits and gradients, without dropout, from our first weights.

    Two of the large model's layers have all of its sizes.
    """
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.golden import reference

    values = sizes.get_config()
    values.model.num_hidden_layers = num_layers
    config = config_lib.from_config_dict(values)
    tensors = weight_names.rename(random_parameters(config), HUGGINGFACE)
    graphdef, params = parameters_from(tensors, config)
    theirs = reference.build(
        config.tokenizer.vocab_size, dataclasses.asdict(config.model)
    )
    reference.set_weights(theirs, tensors)
    expected = reference.outputs(theirs, english_inputs())
    batch = our_batch(english_inputs())
    every = at_every_token(batch)
    assert_outputs_equal(outputs(graphdef, params, every, F32), expected)
    assert_outputs_near_in_bfloat16(outputs(graphdef, params, every, BF16), expected)
    loss, gradients = loss_and_gradients(graphdef, params, batch)
    np.testing.assert_allclose(loss, expected["loss"], rtol=1e-4)
    assert_gradients_equal(gradients, reference.gradients(theirs))
