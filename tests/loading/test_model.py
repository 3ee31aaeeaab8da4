"""Tests of reading an encoder or a fine-tuned model from every supported format."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from bert_jax import config as config_lib
from bert_jax.data.tokenizers import training
from bert_jax.errors import ConfigError
from bert_jax.finetuning.tasks import TASKS
from bert_jax.loading import model as model_lib
from bert_jax.model import parameters
from tests.conftest import make_config, use_mesh
from tests.finetuning import tuned
from tests.interop.test_google_tf1 import random_variables, save_as_run_pretraining_does
from tests.models import (
    TOKENIZER,
    VOCAB,
    assert_same,
    change_json,
    change_tensors,
    encoder_of,
    keep_only_vocab_txt,
    read,
    tensors_of,
)

F32 = jnp.dtype(jnp.float32)


@pytest.mark.parametrize("kind", TASKS)
def test_tuned_model_round_trips(kind, tmp_path):
    config, graphdef, params = tuned.write(tmp_path, kind)
    found = tuned.read(tmp_path)
    assert (found.config, found.tokenizer) == (config, TOKENIZER)
    assert found.head == tuned.HEADS[kind]
    placed = model_lib.place(found)
    assert placed.graphdef == graphdef
    jax.tree.map(np.testing.assert_array_equal, placed.params, params)


def test_read_encoder_ignores_heads_and_places_it_on_the_mesh(source):
    directory, arrays = source
    use_mesh(2, 2, 2)
    found = model_lib.place(model_lib.read_encoder(str(directory)))
    kernel = found.params["bert"]["layers"][1]["output"]["kernel"][...]
    np.testing.assert_array_equal(kernel, arrays["bert.layers.1.output.kernel"])
    assert kernel.sharding.spec == jax.P("tensor", "fsdp")


@pytest.mark.parametrize("kind", config_lib.TOKENIZER_KINDS)
def test_tokenizer_is_read_from_the_directory(kind, tmp_path):
    texts = [[f"the garden {i} and the river {i * 7}."] for i in range(200)]
    config = make_config(tokenizer__kind=kind).tokenizer
    tokenizer = training.train(texts, config)
    tuned.write(tmp_path, "tagging", tokenizer)
    assert model_lib.read_encoder(str(tmp_path)).tokenizer == tokenizer


def test_a_path_without_a_tuned_model_is_an_error(tmp_path):
    def read(path=tmp_path):
        with pytest.raises(ConfigError) as error:
            tuned.read(path)
        return str(error.value)

    assert "does not exist" in read(tmp_path / "nowhere")
    assert "has no config.json" in read()
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").touch()
    assert read(tmp_path / "run").endswith(f"; use {tmp_path / 'run'}/model")
    (tmp_path / "run" / "checkpoints").mkdir()
    command = f"--config=configs/finetune/own.py --model={tmp_path / 'run'}"
    assert read(tmp_path / "run").endswith(f"python -m bert_jax.finetune {command}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"hidden_size": 33}, "is not a multiple of num_attention_heads"),
        ({"hidden_size": 64}, "does not match the config in"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"num_hidden_layers": 3}, "lacks 16 of the model's tensors"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 must be"),
        ({"vocab_size": 96}, r"word is \[97, 32\], expected \[96, 32\]"),
    ],
)
def test_sizes_of_other_weights_are_errors(changes, message, tmp_path):
    tuned.write(tmp_path)
    change_json(tmp_path, "config.json", **changes)
    with pytest.raises(ConfigError, match=message):
        tuned.read(tmp_path)


def test_invalid_tokenizer_is_an_error(tmp_path):
    tuned.write(tmp_path)
    keep_only_vocab_txt(tmp_path, VOCAB)
    change_json(tmp_path, "tokenizer_config.json", do_lower_case=None)
    with pytest.raises(ConfigError, match='"do_lower_case": true'):
        model_lib.read_encoder(str(tmp_path))
    change_json(tmp_path, "tokenizer_config.json", do_lower_case=True)
    assert model_lib.read_encoder(str(tmp_path)).tokenizer.lowercase
    with (tmp_path / "vocab.txt").open("a") as file:
        file.write("\nmore\n")
    with pytest.raises(ConfigError, match="has 98 tokens, more than the 97"):
        model_lib.read_encoder(str(tmp_path))
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(ConfigError, match="has no tokenizer"):
        model_lib.read_encoder(str(tmp_path))


def test_encoder_is_read_from_a_hugging_face_directory(source):
    directory, arrays = source
    found = model_lib.read_encoder(str(directory))
    assert_same(found.arrays, encoder_of(arrays))
    assert found.config == make_config().model
    assert found.tokenizer == TOKENIZER and not found.notes


@pytest.mark.slow
def test_encoder_is_read_from_a_tf1_checkpoint(tmp_path):
    save_as_run_pretraining_does(tmp_path, random_variables())
    found = model_lib.read_encoder(str(tmp_path), True)
    assert_same(found.arrays, encoder_of(read(tmp_path).arrays))
    assert found.config == make_config().model and found.tokenizer == TOKENIZER
    with pytest.raises(ConfigError, match="add --lowercase=true or --lowercase=false"):
        model_lib.read_encoder(str(tmp_path))


def test_encoder_is_read_from_a_workdir(newest, trained):
    found = model_lib.read_encoder(str(trained / "run"))
    assert_same(found.arrays, encoder_of(parameters.by_name(newest.params)))
    assert found.tokenizer == newest.corpus.tokenizer
    assert found.config == newest.config.model


def test_padding_of_the_token_table_is_dropped(source):
    directory, arrays = source
    table = arrays["bert.embeddings.word"]
    padded = np.concatenate([table, np.ones((31, 32), np.float32)])
    change_tensors(
        directory,
        bert__embeddings__word_embeddings__weight=padded,
        cls__predictions__bias=np.zeros(128, np.float32),
    )
    change_json(directory, "config.json", vocab_size=128)
    found = model_lib.read_encoder(str(directory)).arrays["bert.embeddings.word"]
    np.testing.assert_array_equal(found, table)


def test_first_layers_equal_those_of_the_full_encoder(source):
    found = model_lib.read_encoder(str(source[0]))
    assert model_lib.first_layers(found, 0) is found
    assert model_lib.first_layers(found, 2) is found
    first = model_lib.first_layers(found, 1)
    assert first.config.num_hidden_layers == 1
    left_out = found.arrays.keys() - first.arrays.keys()
    assert left_out and all(name.startswith("bert.layers.1.") for name in left_out)
    assert_same(first.arrays, {name: found.arrays[name] for name in first.arrays})
    with pytest.raises(ConfigError, match="config.num_layers=3, but the model has 2"):
        model_lib.first_layers(found, 3)


def test_missing_pooler_is_reported(directory):
    poolers = (name for name in tensors_of(directory) if "pooler" in name)
    change_tensors(directory, **dict.fromkeys(poolers))
    assert "no pooler" in model_lib.read_encoder(str(directory)).notes[0]


@pytest.mark.parametrize(
    ("path", "lowercase", "message"),
    [
        ("..", None, "has no config.json"),
        ("../unfinished/model", None, "not complete; run it again"),
        ("../unfinished/modle", None, "does not exist; use a directory of python -m"),
        ("", False, "--lowercase=false, but"),
    ],
)
def test_an_invalid_encoder_is_an_error(source, path, lowercase, message):
    (source[0].parent / "unfinished").mkdir()
    (source[0].parent / "unfinished" / "finetune.json").touch()
    with pytest.raises(ConfigError, match=message) as error:
        model_lib.read_encoder(str(source[0] / path), lowercase)
    assert "\n" not in str(error.value)


def test_a_table_of_tokens_without_dims_is_an_error(directory):
    scalar = np.zeros((), np.float32)
    change_tensors(directory, bert__embeddings__word_embeddings__weight=scalar)
    with pytest.raises(ConfigError, match=r"embeddings.word is \[\], expected \[1, 32"):
        model_lib.read_encoder(str(directory))


@pytest.mark.parametrize("prefix", ["module.", "model.", "0.auto_model."])
@pytest.mark.parametrize("bert", ["bert.", ""])
def test_prefix_of_a_wrapper_is_dropped(source, prefix, bert):
    directory, arrays = source
    renamed = {
        prefix + name.replace("bert.", bert): array
        for name, array in tensors_of(directory).items()
    }
    safetensors.numpy.save_file(renamed, directory / "model.safetensors")
    found = model_lib.read_encoder(str(directory))
    assert_same(found.arrays, encoder_of(arrays))
    two = renamed | {f"other.{name}": array for name, array in renamed.items()}
    safetensors.numpy.save_file(two, directory / "model.safetensors")
    with pytest.raises(ConfigError, match=f"several encoders, named .*{prefix}"):
        model_lib.read_encoder(str(directory))


def test_vocabulary_shorter_than_the_table_is_reported(directory):
    keep_only_vocab_txt(directory, VOCAB[:-7])
    found = model_lib.read_encoder(str(directory))
    (note,) = found.notes
    assert len(found.arrays["bert.embeddings.word"]) == 90
    assert note.endswith(
        "has 90 tokens, and the table of tokens 97 rows; the last ones are not used"
    )


def test_only_a_masked_lm_needs_mask(directory):
    keep_only_vocab_txt(directory, [x if x != "[MASK]" else "other" for x in VOCAB])
    assert "[MASK]" not in model_lib.read_encoder(str(directory)).tokenizer.vocab
    with pytest.raises(ConfigError, match=r"has no \[MASK\], which a masked"):
        model_lib.read_encoder(str(directory), has_masked_lm=True)
