"""Tests of the pooling files: parity with sentence-transformers, and errors."""

import json

import numpy as np
import pytest

from bert_jax import digests, inference
from bert_jax.data.tokenizers.wordpiece import WordPiece
from bert_jax.errors import ConfigError
from bert_jax.interop import files, huggingface_write, sentence_transformers
from bert_jax.loading import model as model_lib
from tests.finetuning import tuned
from tests.models import TOKENIZER, change_json

TEXTS = ["w1 w2 w3", "w9", "w4 w5 w6 w7 w8 w9 w10", "nowhere w3"]


@pytest.fixture
def directory(tmp_path):
    tuned.write(tmp_path, "similarity")
    digests.write_sums(tmp_path)
    return tmp_path


def test_embeddings_equal_those_of_sentence_transformers(directory):
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(directory), device="cpu")
    assert theirs.max_seq_length == 32
    found = inference.load(directory, batch_size=4).features(TEXTS)
    np.testing.assert_allclose(found, theirs.encode(TEXTS), atol=2e-5)
    cosines = theirs.similarity(found, found).numpy()
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[3])]
    rows = inference.load_tuned(directory, batch_size=4).predict(pairs)
    for row, cosine in zip(rows, (cosines[0, 1], cosines[2, 3]), strict=True):
        assert row["similarity"] == pytest.approx(cosine, abs=2e-5)


PAIRS = [("W1 w2", "w3"), ("w4", "W5 nowhere")]


@pytest.mark.parametrize(
    "settings, transformer",
    [
        ({"prompts": {"q": "w7 w8 "}, "default_prompt_name": "q"}, {}),
        ({"prompts": {"q": "w7 w8 "}, "default_prompt_name": None}, {}),
        ({}, {"do_lower_case": True}),
    ],
)
def test_prompts_and_lower_casing_are_those_of_the_library(
    settings, transformer, directory
):
    library = pytest.importorskip("sentence_transformers")
    (directory / "SHA256SUMS").unlink()
    cased = WordPiece(TOKENIZER.vocab, lowercase=False)
    huggingface_write.build_tokenizer(cased).save(str(directory / "tokenizer.json"))
    change_json(directory, "tokenizer_config.json", do_lower_case=False)
    change_json(directory, "config_sentence_transformers.json", **settings)
    change_json(directory, "sentence_bert_config.json", **transformer)
    theirs = library.SentenceTransformer(str(directory), device="cpu")
    found = inference.load_tuned(directory, batch_size=4).predict(PAIRS)
    for pair, row in zip(PAIRS, found, strict=True):
        a, b = theirs.encode(list(pair))
        expected = float(theirs.similarity(a, b)[0, 0])
        assert row["similarity"] == pytest.approx(expected, abs=2e-5)


def test_dot_products_need_normalized_vectors(directory):
    change_json(
        directory, "config_sentence_transformers.json", similarity_fn_name="dot"
    )
    with pytest.raises(ConfigError, match="similarity_fn_name='dot'; only 'cosine'"):
        sentence_transformers.is_dual_encoder(directory)
    modules = json.loads((directory / "modules.json").read_text())
    modules.append({"path": "2_Normalize", "type": "a.Normalize"})
    (directory / "modules.json").write_text(json.dumps(modules))
    assert sentence_transformers.is_dual_encoder(directory)


def test_pooling_without_the_prompt_is_refused(directory):
    change_json(directory, "1_Pooling/config.json", include_prompt=False)
    assert sentence_transformers.is_dual_encoder(directory)
    prompts = {"prompts": {"q": "w7 "}, "default_prompt_name": "q"}
    change_json(directory, "config_sentence_transformers.json", **prompts)
    with pytest.raises(ConfigError, match="does not define plain mean pooling"):
        sentence_transformers.is_dual_encoder(directory)
    prompts["default_prompt_name"] = "other"
    change_json(directory, "config_sentence_transformers.json", **prompts)
    with pytest.raises(ConfigError, match="'other', which is not in its prompts"):
        sentence_transformers.prompt(directory)


def test_digests_cover_the_pooling_config(directory):
    files.verify_digests(directory)
    path = directory / "1_Pooling" / "config.json"
    path.write_text(path.read_text().replace("mean", "cls"))
    with pytest.raises(ConfigError, match="1_Pooling/config.json does not match its"):
        files.verify_digests(directory)


@pytest.mark.parametrize(
    "pooling",
    [
        {"embedding_dimension": 32, "pooling_mode": "mean"},
        {"word_embedding_dimension": 32},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
        {"pooling_mode": ["mean"], "pooling_mode_cls_token": True},
    ],
)
def test_every_form_of_mean_pooling_is_read(directory, pooling):
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    assert sentence_transformers.is_dual_encoder(directory)


def test_max_length_is_that_of_sentence_transformers(directory):
    (directory / "SHA256SUMS").unlink()
    path = directory / "sentence_bert_config.json"
    assert tuned.read(directory).max_length == 32
    path.write_text('{"max_seq_length": 12}')
    assert model_lib.read_encoder(str(directory)).max_length == 12
    path.write_text('{"max_seq_length": "long"}')
    with pytest.raises(ConfigError, match="has max_seq_length='long'"):
        model_lib.read_encoder(str(directory))


POOLING = "1_Pooling/config.json"
NOT_PLAIN = "does not define plain mean pooling"
TRANSFORMER = {"type": "a.Transformer", "path": ""}
OUTSIDE = [TRANSFORMER, {"type": "a.Pooling", "path": "../elsewhere"}]


@pytest.mark.parametrize(
    "file, content, message",
    [
        (POOLING, {"pooling_mode": "cls"}, NOT_PLAIN),
        (POOLING, {"pooling_mode_max_tokens": 1}, NOT_PLAIN),
        (POOLING, [], "is not a JSON object"),
        ("modules.json", 3, "modules.json is corrupt"),
        ("modules.json", [{"type": "a.Transformer"}], "modules.json is corrupt"),
        ("modules.json", [TRANSFORMER], NOT_PLAIN),
        ("modules.json", OUTSIDE, "points outside of its directory"),
    ],
)
def test_other_embeddings_are_rejected(directory, file, content, message):
    (directory / file).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=message):
        sentence_transformers.is_dual_encoder(directory)


def test_encoder_without_pooling_files_is_not_a_dual_encoder(directory):
    (directory / "modules.json").unlink()
    assert not sentence_transformers.is_dual_encoder(directory)
    (directory / "SHA256SUMS").unlink()
    with pytest.raises(ConfigError, match="has no task head"):
        tuned.read(directory)
