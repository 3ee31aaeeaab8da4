"""The API for features: results equal those of transformers, and errors are clear."""

import jax
import numpy as np
import pytest

from bert_jax import inference
from bert_jax.errors import ConfigError
from bert_jax.interop import huggingface_write
from tests.commands import run_code
from tests.conftest import use_mesh
from tests.finetuning import tuned
from tests.inference.test_features import TEXTS, TOKENIZER, directory

__all__ = ["directory"]  # the fixture
MIXED = [texts[0] if len(texts) == 1 else texts for texts in TEXTS]


def load(directory, **changes):
    use_mesh(1, 1, 1)
    return inference.load(directory, **{"max_length": 16, "batch_size": 4} | changes)


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
    tokens = model.features(MIXED, layers=layers, pooling="none")
    means = model.features(MIXED, layers=layers)
    firsts = model.features(MIXED, layers=layers, pooling="cls")
    for i, features in enumerate(tokens):
        expected = THEIRS[layers](their_states(directory, features))
        np.testing.assert_allclose(features.values, expected, rtol=0, atol=1e-4)
        np.testing.assert_allclose(means[i], expected.mean(axis=0), rtol=0, atol=1e-4)
        np.testing.assert_allclose(firsts[i], expected[0], rtol=0, atol=1e-4)
        assert features.values.dtype == np.float32
    assert means.dtype == firsts.dtype == np.float32


@pytest.mark.slow
def test_a_model_saved_by_transformers_has_the_same_features(directory, tmp_path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(directory)
    theirs.save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.save_pretrained(tmp_path)
    found, expected = load(tmp_path).features(MIXED), load(directory).features(MIXED)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("layers, dims", [("last", 32), ("concat_last_four", 128)])
def test_pooled_features_are_one_array(layers, dims, directory):
    model = load(directory)
    assert model.features(MIXED, layers=layers).shape == (len(MIXED), dims)
    empty = model.features([], layers=layers)
    assert empty.shape == (0, dims) and empty.dtype == np.float32
    assert model.features([], layers=layers, pooling="none") == []


def test_words_have_offsets_and_one_vector_each(directory):
    (words,) = load(directory).features(["bad cab"], pooling="words")
    assert words.starts.tolist() == [0, 4] and words.ends.tolist() == [3, 7]
    assert words.values.shape == (2, 32)


def test_texts_and_tokens_are_counted_over_all_calls(directory):
    model = load(directory)
    counts: list[int] = []
    model.features(MIXED, on_batch=counts.append)
    model.features(MIXED, pooling="cls")
    assert sum(counts) == len(MIXED)
    assert model.num_truncated == 4  # two texts in each call
    tokens = model.features(MIXED, pooling="none")
    assert model.num_tokens == 3 * sum(len(features.ids) for features in tokens)


@pytest.mark.slow
def test_bfloat16_and_int8_change_features_little(directory):
    exact = load(directory).features(MIXED)
    for options in ({"compute_dtype": "bfloat16"}, {"weights": "int8"}):
        found = load(directory, **options).features(MIXED)
        assert found.dtype == np.float32
        products = (found * exact).sum(axis=1)
        cosines = products / np.linalg.norm(found, axis=1)
        cosines /= np.linalg.norm(exact, axis=1)
        assert (cosines > 0.98).all() and not np.array_equal(found, exact)


@pytest.mark.slow
def test_a_large_mesh_gives_the_same_features(directory):
    expected = load(directory).features(MIXED)
    use_mesh(4, 1, 2)
    found = inference.load(directory, max_length=16, batch_size=3).features(MIXED)
    np.testing.assert_allclose(found, expected, atol=5e-6)


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


def test_the_mesh_of_the_caller_stays(directory):
    mesh = use_mesh(2, 1, 1)
    inference.load(directory).features(["a"])
    assert jax.sharding.get_mesh() == mesh


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_length": 4}, "max_length=4 must be at least 5 and at most .* 32 pos"),
        ({"max_length": 33}, "at most the model's 32 positions"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        (
            {"compute_dtype": "float16"},
            "compute_dtype='float16' must be one of",
        ),
        ({"weights": "int4"}, "weights='int4' must be one of float32, int8"),
    ],
)
def test_an_invalid_option_is_an_error(options, message, directory):
    with pytest.raises(ConfigError, match=message):
        load(directory, **options)


def test_invalid_arguments_of_features_are_errors(directory, tmp_path):
    model = load(directory)
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
    config, _, params = tuned.build("tagging")
    head = tuned.HEADS["tagging"]
    huggingface_write.write_tuned(tmp_path, params, config, head, TOKENIZER, 32)
    with pytest.raises(ConfigError, match="needs at least 4 layers, but the model has"):
        load(tmp_path).features(["a"], layers="sum_last_four")


def test_a_missing_model_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="nowhere is not a directory; use a"):
        load(tmp_path / "nowhere")
