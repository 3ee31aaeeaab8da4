"""Features do not depend on the batch, and refer to tokens and words of the text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizers import wordpiece
from bert_jax.errors import ConfigError
from bert_jax.inference.features import Extractor
from bert_jax.interop import huggingface_write
from bert_jax.loading import model as model_lib
from tests.conftest import make_config, use_mesh
from tests.finetuning import tuned

LETTERS = "abcdefghijklmnop"
VOCAB = (*wordpiece.SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS))
TOKENIZER = wordpiece.WordPiece(
    (*VOCAB, *(f"[unused{i}]" for i in range(97 - len(VOCAB)))), lowercase=True
)
TEXTS = [
    ("Bad cab", "deaf"),
    ("a" * 30 + " b" * 30,),
    ("",),
    ("face",),
    ("dig a pond", ""),
    ("a b c d e f g h i j k l m n o p",),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Writes a model of five layers."""
    use_mesh(1, 1, 1)
    path = tmp_path_factory.mktemp("model")
    config = dataclasses.replace(make_config().model, num_hidden_layers=5)
    _, params = tuned.draw(config, tuned.HEADS["tagging"], 0)
    huggingface_write.write_tuned(
        path, params, config, tuned.HEADS["tagging"], TOKENIZER, 32
    )
    return path


def make(directory, **changes):
    settings = {
        "layers": "last",
        "pooling": "none",
        "max_length": 16,
        "batch_size": 4,
        "dtype": jnp.dtype(jnp.float32),
        "mesh": jax.sharding.get_mesh(),
    } | changes
    model = model_lib.place(model_lib.read_encoder(str(directory)))
    return Extractor(model, **settings)


def test_pooled_features_are_the_mean_and_cls_of_the_tokens(directory):
    by_token = make(directory)(TEXTS)
    mean = make(directory, pooling="mean")(TEXTS)
    cls = make(directory, pooling="cls")(TEXTS)
    for tokens, one, other in zip(by_token, mean, cls, strict=True):
        np.testing.assert_allclose(one.values, tokens.values.mean(axis=0), atol=5e-6)
        np.testing.assert_allclose(other.values, tokens.values[0], atol=5e-6)


@pytest.mark.slow
def test_features_do_not_depend_on_other_texts(directory):
    extractor = make(directory, max_length=32)  # gives two row lengths
    together = extractor(TEXTS)
    for text, features in zip(TEXTS, together, strict=True):
        (alone,) = extractor([text])
        np.testing.assert_array_equal(alone.ids, features.ids)
        np.testing.assert_allclose(alone.values, features.values, atol=5e-6)
    assert extractor.num_truncated == 2  # the long text, once in each call
    assert [len(features.ids) for features in together] == [13, 32, 2, 6, 10, 18]


@pytest.mark.slow
def test_features_do_not_depend_on_the_mesh(directory):
    expected = make(directory)(TEXTS)
    use_mesh(4, 1, 1)
    for found, other in zip(
        make(directory, batch_size=3)(TEXTS), expected, strict=True
    ):
        np.testing.assert_allclose(found.values, other.values, atol=5e-6)


def test_tokens_have_character_offsets(directory):
    pair, _, empty, *_ = make(directory)(TEXTS)
    tokens = [TOKENIZER.vocab[i] for i in pair.ids]
    assert tokens == "[CLS] b ##a ##d c ##a ##b [SEP] d ##e ##a ##f [SEP]".split()
    assert pair.starts.tolist() == [0, 0, 1, 2, 4, 5, 6, 0, 0, 1, 2, 3, 0]
    assert pair.ends.tolist() == [0, 1, 2, 3, 5, 6, 7, 0, 1, 2, 3, 4, 0]
    assert [TOKENIZER.vocab[i] for i in empty.ids] == ["[CLS]", "[SEP]"]


@pytest.mark.slow
def test_words_have_the_features_of_their_first_tokens(directory):
    texts = [("bad  \x00 cab\x00deaf",), ("",), (" " + "bad " * 20,)]
    words = make(directory, pooling="words", max_length=32)(texts)
    tokens = make(directory, max_length=32)(texts)
    first, empty, long = words
    assert [TOKENIZER.vocab[i] for i in first.ids] == ["b", "[PAD]", "c"]
    assert first.starts.tolist() == [0, 5, 7] and first.ends.tolist() == [3, 6, 15]
    np.testing.assert_array_equal(first.values[[0, 2]], tokens[0].values[[1, 4]])
    assert not first.values[1].any() and empty.values.shape == (0, 32)
    # Room for 30 tokens: 10 words of three tokens; the other 10 words were truncated.
    assert len(long.ids) == 20 and not long.values[10:].any()
    np.testing.assert_array_equal(long.values[:10], tokens[2].values[1:-1:3])


def test_a_model_with_too_few_layers_is_an_error(tmp_path):
    config, _, params = tuned.build("tagging")
    huggingface_write.write_tuned(
        tmp_path, params, config, tuned.HEADS["tagging"], TOKENIZER, 32
    )
    with pytest.raises(ConfigError, match="the model has 2 layers; try layers=sum_a"):
        make(tmp_path, layers="concat_last_four")


def test_every_text_is_counted_once_while_batches_complete(directory):
    extractor = make(directory, batch_size=2)
    counts: list[int] = []
    extractor([("w1",), ("w2", "w3"), ("w4",), ("w5",), ("w6",)], counts.append)
    assert counts == [2, 2, 1]
