"""The API for features: results equal those of transformers, and errors are clear."""

import dataclasses
import functools
import gc
import inspect
import weakref

import jax
import numpy as np
import pytest

from bert_jax import inference
from bert_jax.data.tokenizers import base, wordpiece
from bert_jax.errors import ConfigError
from bert_jax.interop import huggingface_write
from tests.commands import run_code
from tests.conftest import make_config, use_mesh
from tests.finetuning import tuned

LETTERS = "abcdefghijklmnop"
VOCAB = (*base.SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS))
TOKENIZER = wordpiece.WordPiece(
    (*VOCAB, *(f"[unused{i}]" for i in range(97 - len(VOCAB)))), lowercase=True
)
TEXTS = [
    ("Bad cab", "deaf"),
    "a" * 30 + " b" * 30,
    "",
    "face",
    ("dig a pond", ""),
    "a b c d e f g h i j k l m n o p",
]


def write(path, num_layers):
    use_mesh(1, 1, 1)
    config = dataclasses.replace(make_config().model, num_hidden_layers=num_layers)
    head = tuned.HEADS["tagging"]
    _, params = tuned.draw(config, head, 0)
    huggingface_write.write_model(path, params, config, head, TOKENIZER, 32)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Writes a model of five layers."""
    path = tmp_path_factory.mktemp("model")
    write(path, 5)
    return path


def load(directory, **changes):
    use_mesh(1, 1, 1)
    return inference.load(directory, **{"max_length": 16, "batch_size": 4} | changes)


@functools.cache
def shared(directory):
    """Returns a model whose programs are compiled once for several tests."""
    return load(directory)


def their_states(directory, features):
    """Returns the hidden states [E, T, D] that transformers computes for one text."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel.from_pretrained(
        directory, attn_implementation="eager", add_pooling_layer=False
    ).eval()
    ids = features.ids.tolist()
    second = ids.index(3) + 1
    types = [0] * second + [1] * (len(ids) - second)
    with torch.no_grad():
        found = model(
            torch.tensor([ids]),
            token_type_ids=torch.tensor([types]),
            output_hidden_states=True,
        )
    return np.stack([states[0].numpy() for states in found.hidden_states])


THEIRS = {
    "first": lambda x: x[0],
    "second_to_last": lambda x: x[4],
    "last": lambda x: x[5],
    "sum_last_four": lambda x: x[2] + x[3] + x[4] + x[5],
    "concat_last_four": lambda x: np.concatenate([x[2], x[3], x[4], x[5]], axis=-1),
    "sum_all": lambda x: x[1:].sum(axis=0),
}


@pytest.mark.slow
@pytest.mark.parametrize("layers", inference.LAYERS)
def test_every_combination_of_layers_equals_transformers(layers, directory):
    model = load(directory)
    tokens = model.features(TEXTS, layers=layers, pooling="none")
    means = model.features(TEXTS, layers=layers)
    firsts = model.features(TEXTS, layers=layers, pooling="cls")
    for i, features in enumerate(tokens):
        expected = THEIRS[layers](their_states(directory, features))
        np.testing.assert_allclose(features.values, expected, rtol=0, atol=1e-4)
        np.testing.assert_allclose(means[i], expected.mean(axis=0), rtol=0, atol=1e-4)
        np.testing.assert_allclose(firsts[i], expected[0], rtol=0, atol=1e-4)
        assert features.values.dtype == np.float32
    assert means.dtype == firsts.dtype == np.float32


def test_pooled_features_are_the_mean_and_cls_of_the_tokens(directory):
    model = shared(directory)
    tokens = model.features(TEXTS, pooling="none")
    for pooling, of_tokens in (
        ("mean", lambda values: values.mean(axis=0)),
        ("cls", lambda values: values[0]),
    ):
        expected = [of_tokens(features.values) for features in tokens]
        found = model.features(TEXTS, pooling=pooling)
        np.testing.assert_allclose(found, expected, atol=5e-6)
    assert model.features([]).shape == (0, 32)
    assert model.features([], layers="concat_last_four").shape == (0, 128)
    assert model.features([], pooling="none") == []


@pytest.mark.slow
def test_features_do_not_depend_on_other_texts(directory):
    model = load(directory, max_length=32)  # gives two row lengths
    together = model.features(TEXTS, pooling="none")
    for text, features in zip(TEXTS, together, strict=True):
        (alone,) = model.features([text], pooling="none")
        np.testing.assert_array_equal(alone.ids, features.ids)
        np.testing.assert_allclose(alone.values, features.values, atol=5e-6)
    assert [len(features.ids) for features in together] == [13, 32, 2, 6, 10, 18]


def test_tokens_have_character_offsets(directory):
    pair, _, empty, *_ = shared(directory).features(TEXTS, pooling="none")
    tokens = [TOKENIZER.vocab[i] for i in pair.ids]
    assert tokens == "[CLS] b ##a ##d c ##a ##b [SEP] d ##e ##a ##f [SEP]".split()
    assert pair.starts.tolist() == [0, 0, 1, 2, 4, 5, 6, 0, 0, 1, 2, 3, 0]
    assert pair.ends.tolist() == [0, 1, 2, 3, 5, 6, 7, 0, 1, 2, 3, 4, 0]
    assert [TOKENIZER.vocab[i] for i in empty.ids] == ["[CLS]", "[SEP]"]


def test_words_have_the_features_of_their_first_tokens(directory):
    texts = ["bad  \x00 cab\x00deaf", "", " " + "bad " * 20]
    model = load(directory, max_length=32)
    first, empty, long = model.features(texts, pooling="words")
    tokens = model.features(texts, pooling="none")
    assert [TOKENIZER.vocab[i] for i in first.ids] == ["b", "[PAD]", "c"]
    assert first.starts.tolist() == [0, 5, 7] and first.ends.tolist() == [3, 6, 15]
    np.testing.assert_array_equal(first.values[[0, 2]], tokens[0].values[[1, 4]])
    assert not first.values[1].any() and empty.values.shape == (0, 32)
    # Room for 30 tokens: 10 words of three tokens; the other 10 words were truncated.
    assert len(long.ids) == 20 and not long.values[10:].any()
    np.testing.assert_array_equal(long.values[:10], tokens[2].values[1:-1:3])


def test_texts_and_tokens_are_counted_over_all_calls(directory):
    model = shared(directory)
    num_truncated, num_tokens = model.num_truncated, model.num_tokens
    counts: list[int] = []
    model.features(TEXTS, on_batch=counts.append)
    model.features(TEXTS, pooling="cls")
    assert counts == [4, 2]
    assert model.num_truncated == num_truncated + 4  # two texts in each call
    tokens = model.features(TEXTS, pooling="none")
    num_ids = sum(len(features.ids) for features in tokens)
    assert model.num_tokens == num_tokens + 3 * num_ids


def test_programs_are_released_with_their_model(directory):
    model = load(directory)
    model.features(TEXTS[:1])
    # What jit's caches refer to.
    program = weakref.ref(model._predictors["last", "mean"]._forward.__wrapped__)
    del model
    gc.collect()
    assert program() is None


@pytest.mark.slow
def test_bfloat16_and_int8_change_features_little(directory):
    exact = load(directory).features(TEXTS)
    for options in ({"compute_dtype": "bfloat16"}, {"weights": "int8"}):
        found = load(directory, **options).features(TEXTS)
        assert found.dtype == np.float32
        products = (found * exact).sum(axis=1)
        cosines = products / np.linalg.norm(found, axis=1)
        cosines /= np.linalg.norm(exact, axis=1)
        assert (cosines > 0.98).all() and not np.array_equal(found, exact)


WITHOUT_MESH = """
import sys, jax
import numpy as np
from bert_jax import inference
model = inference.load({directory!r}, max_length=16)
vectors = model.features(["bad cab", ("a", "b")])
assert jax.sharding.get_mesh().empty  # nothing global has changed
print(vectors.shape, repr(vectors.astype(float).sum()))
"""


@pytest.mark.slow
def test_no_mesh_needs_to_be_set_and_none_is_set_afterwards(directory):
    result = run_code(WITHOUT_MESH.format(directory=str(directory)))
    assert result.returncode == 0, result.stderr
    shape, _, total = result.stdout.rpartition(" ")
    assert shape == "(2, 32)"
    expected = load(directory).features(["bad cab", ("a", "b")]).sum()
    number = float(total.strip().removeprefix("np.float64(").removesuffix(")"))
    assert number == pytest.approx(float(expected), abs=1e-3)


@pytest.mark.slow
def test_the_mesh_of_the_caller_is_used_and_stays(directory):
    expected = load(directory).features(TEXTS)
    mesh = use_mesh(4, 1, 2)
    found = inference.load(directory, max_length=16, batch_size=3).features(TEXTS)
    np.testing.assert_allclose(found, expected, atol=5e-6)
    assert jax.sharding.get_mesh() == mesh


@pytest.mark.parametrize(
    "load", [inference.load, inference.load_tuned, inference.load_masked_lm]
)
def test_options_are_checked_before_a_model_is_read(load):
    for name, value, message in (
        ("batch_size", 0, "batch_size=0 must be at least 1"),
        ("compute_dtype", "float16", "compute_dtype='float16' must be one of float32,"),
        ("weights", "int4", "weights='int4' must be one of float32, int8"),
        ("num_best", 0, "num_best=0 must be at least 1"),
    ):
        if name in inspect.signature(load).parameters:
            with pytest.raises(ConfigError, match=message):
                load("nowhere", **{name: value})


def test_invalid_arguments_of_features_are_errors(directory, tmp_path):
    model = shared(directory)
    with pytest.raises(TypeError, match="not the string 'hello'"):
        model.features("hello")
    for options, message in (
        ({"layers": "middle"}, "layers='middle' must be one of first"),
        ({"pooling": "max"}, "pooling='max' must be one of none, words, mean, cls"),
        ({"pooling": "words"}, "input 1 has 2 texts; .* must be a single text"),
    ):
        with pytest.raises(ConfigError, match=message):
            model.features(["a", ("b", "c")], **options)
    with pytest.raises(ConfigError, match="input 0 has 3 texts; .* a text or a pair"):
        model.features([("a", "b", "c")])
    write(tmp_path, 2)
    with pytest.raises(ConfigError, match="the model has 2 layers; try layers=sum_all"):
        load(tmp_path).features(["a"], layers="sum_last_four")
    for path, options, message in (
        (tmp_path / "nowhere", {}, "nowhere does not exist; use a"),
        (directory, {"max_length": 4}, "max_length=4 must be at least 5 and at most"),
        (directory, {"max_length": 33}, "at most the model's 32 positions"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(path, **options)
