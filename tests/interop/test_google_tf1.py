"""Tests of reading and writing TF1 checkpoints, with those of TensorFlow's Saver."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax import errors
from bert_jax.interop import google_tf1
from bert_jax.lazy_tensorflow import tf
from bert_jax.model import bert as bert_lib
from bert_jax.model import parameters
from tests import numpy_bert
from tests.commands import flip
from tests.conftest import make_batch, make_config, slow
from tests.models import TOKENIZER, VOCAB, change_json, read

V, D, F = len(VOCAB), 32, 64
LAYER = {
    "attention/self/query/kernel": (D, D),
    "attention/self/query/bias": (D,),
    "attention/self/key/kernel": (D, D),
    "attention/self/key/bias": (D,),
    "attention/self/value/kernel": (D, D),
    "attention/self/value/bias": (D,),
    "attention/output/dense/kernel": (D, D),
    "attention/output/dense/bias": (D,),
    "attention/output/LayerNorm/beta": (D,),
    "attention/output/LayerNorm/gamma": (D,),
    "intermediate/dense/kernel": (D, F),
    "intermediate/dense/bias": (F,),
    "output/dense/kernel": (F, D),
    "output/dense/bias": (D,),
    "output/LayerNorm/beta": (D,),
    "output/LayerNorm/gamma": (D,),
}
# The names and shapes of run_pretraining.py's variables.
RELEASED = {
    "bert/embeddings/word_embeddings": (V, D),
    "bert/embeddings/token_type_embeddings": (2, D),
    "bert/embeddings/position_embeddings": (32, D),
    "bert/embeddings/LayerNorm/beta": (D,),
    "bert/embeddings/LayerNorm/gamma": (D,),
    **{f"bert/encoder/layer_{i}/{k}": s for i in range(2) for k, s in LAYER.items()},
    "bert/pooler/dense/kernel": (D, D),
    "bert/pooler/dense/bias": (D,),
    "cls/predictions/transform/dense/kernel": (D, D),
    "cls/predictions/transform/dense/bias": (D,),
    "cls/predictions/transform/LayerNorm/beta": (D,),
    "cls/predictions/transform/LayerNorm/gamma": (D,),
    "cls/predictions/output_bias": (V,),
    "cls/seq_relationship/output_weights": (2, D),
    "cls/seq_relationship/output_bias": (2,),
}


def random_variables(seed=0):
    random = np.random.default_rng(seed)
    return {
        name: random.normal(0.1, 0.2, shape).astype(np.float32)
        for name, shape in RELEASED.items()
    }


def save_as_run_pretraining_does(directory, variables, prefix="model.ckpt-20"):
    """Saves variables from a TF1 graph, with the optimizer's variables."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("global_step", initializer=np.int64(20))
        for name, value in variables.items():
            v1.get_variable(name, initializer=value)
            for moment in ("adam_m", "adam_v"):
                v1.get_variable(f"{name}/{moment}", initializer=np.ones_like(value))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(directory / prefix))
    TOKENIZER.save(directory)
    config = google_tf1.model_config(make_config(), TOKENIZER)
    (directory / "bert_config.json").write_text(json.dumps(config))


@pytest.fixture
def source(tmp_path):
    variables = random_variables()
    save_as_run_pretraining_does(tmp_path, variables)
    return tmp_path, variables


@pytest.mark.parametrize("hidden_act", ["gelu_new", slow("gelu")])
def test_logits_of_a_tf1_checkpoint_equal_those_of_numpy(source, hidden_act):
    directory, variables = source
    config = make_config(model__hidden_act=hidden_act)
    graphdef, params = bert_lib.build(config.model, V, jax.random.key(0))
    weights = read(directory)
    assert len(weights.arrays) == len(RELEASED)
    (note,) = weights.notes
    assert "config.model.hidden_act" in note
    bert = nnx.merge(graphdef, parameters.place(params, weights.arrays))
    batch = make_batch(config)
    B, T = batch["input_ids"].shape
    batch["masked_lm_positions"] = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    batch["segment_ids"] = batch["segment_ids"].astype(np.int32)
    ours = bert(
        {name: jnp.asarray(rows) for name, rows in batch.items()},
        dropout_key=None,
        dtype=jnp.dtype(jnp.float32),
    )
    expected = numpy_bert.logits(
        variables,
        batch["input_ids"],
        batch["segment_ids"],
        batch["sequence_ids"] > 0,
        num_layers=2,
        num_heads=4,
        erf=hidden_act == "gelu",
    )
    assert np.abs(expected[0]).max() > 1
    np.testing.assert_allclose(ours[0], expected[0], atol=2e-5)
    np.testing.assert_allclose(ours[1][:, 0], expected[1], atol=2e-5)


@pytest.mark.slow
def test_write_and_read_round_trip_bit_for_bit(source, tmp_path):
    directory, variables = source
    config = make_config()
    _, params = bert_lib.build(config.model, V, jax.random.key(0))
    weights = read(directory)
    out = tmp_path / "out"
    out.mkdir()
    google_tf1.write(out, parameters.place(params, weights.arrays), config, TOKENIZER)
    assert sorted(path.name for path in out.iterdir()) == [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "vocab.txt",
    ]
    checkpoint = tf.train.load_checkpoint(str(out / "bert_model.ckpt"))
    shapes = checkpoint.get_variable_to_shape_map()
    assert {name: tuple(shape) for name, shape in shapes.items()} == RELEASED
    for name, expected in variables.items():
        np.testing.assert_array_equal(checkpoint.get_tensor(name), expected)
    again = read(out)
    assert again.arrays.keys() == weights.arrays.keys()
    for name, expected in weights.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], expected)


@pytest.mark.slow
def test_prefix_selects_one_of_several_checkpoints(directory):
    other = random_variables(seed=1)
    save_as_run_pretraining_does(directory, other, "model.ckpt-40")
    with pytest.raises(errors.ConfigError, match="model.ckpt-20.index, model"):
        read(directory)
    for name in ("model.ckpt-40", "model.ckpt-40.index"):
        found = read(directory / name).arrays["decoder_bias"]
        np.testing.assert_array_equal(found, other["cls/predictions/output_bias"])


def test_bert_config_alone_is_not_a_tf1_checkpoint(tmp_path):
    (tmp_path / "bert_config.json").write_text("{}")
    assert not google_tf1.is_source(tmp_path)


DATA = "model.ckpt-20.data-00000-of-00001"


def config(**values):
    """Returns a function that changes bert_config.json."""
    return lambda directory: change_json(directory, "bert_config.json", **values)


def flip_a_bit(directory):
    path = directory / DATA
    weight = random_variables()["bert/pooler/dense/kernel"].tobytes()
    flip(path, 8 * path.read_bytes().index(weight))


def flip_a_bit_of_the_index(directory):
    flip(directory / "model.ckpt-20.index")


def quantise(directory):
    variables = random_variables()
    variables["bert/pooler/dense/bias"] = np.zeros(D, np.int8)
    save_as_run_pretraining_does(directory, variables)


@pytest.mark.slow
def test_counters_are_not_read(directory):
    variables = random_variables() | {"loss_scale/good_steps": np.array(7)}
    save_as_run_pretraining_does(directory, variables)
    assert read(directory)


def link_the_data_elsewhere(directory):
    path = directory / DATA
    outside = directory.parent / f"{directory.name}-outside"
    path.rename(outside)
    path.symlink_to(outside)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (flip_a_bit, "model.ckpt-20 is corrupt .*Checksum does not match"),
        (flip_a_bit_of_the_index, "model.ckpt-20 is corrupt"),
        (lambda x: os.truncate(x / DATA, 5000), "model.ckpt-20 is corrupt"),
        (lambda x: (x / DATA).unlink(), f"{DATA} is missing"),
        (config(vocab_size=10**9), "vocab_size=1000000000, but its table has 97"),
        (quantise, "'bert/pooler/dense/bias' as int8; save it as one of float64"),
        (link_the_data_elsewhere, "is a link to .*outside of its directory"),
        (config(hidden_act="relu"), "has hidden_act='relu'; only 'gelu' is supported"),
    ],
)
def test_broken_checkpoint_is_rejected(directory, harm, message):
    harm(directory)
    with pytest.raises(errors.ConfigError, match=message) as error:
        read(directory)
    assert "\n" not in str(error.value)
    if "link" in message:
        with pytest.raises(errors.ConfigError, match=message):
            read(directory / "model.ckpt-20")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokenizer__kind": "sentencepiece_bpe"},
            "tokenizer.kind='sentencepiece_bpe'",
        ),
        ({"model__layer_norm_eps": 1e-5}, "model.layer_norm_eps=1e-05"),
    ],
)
def test_model_that_the_released_code_does_not_support_is_not_written(
    tmp_path, changes, message
):
    with pytest.raises(errors.ConfigError, match=f"--format=google.*{message}"):
        google_tf1.write(tmp_path, None, make_config(**changes), TOKENIZER)
    assert not any(tmp_path.iterdir())


def test_a_tf2_checkpoint_says_how_it_is_converted(tmp_path):
    (tmp_path / "bert_config.json").write_text(json.dumps({"hidden_act": "gelu"}))
    variable = tf.Variable([1.0, 2.0])
    prefix = str(tmp_path / "bert_model.ckpt")
    tf.train.Checkpoint(encoder=variable).write(prefix)
    with pytest.raises(errors.ConfigError) as error:
        google_tf1.open_source(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{prefix} is a TF2 checkpoint; convert it where")
    assert f"load(t.BertModel(c), '{prefix}', c)" in message and "\n" not in message
