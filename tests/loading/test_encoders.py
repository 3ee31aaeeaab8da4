"""Tests of reading the encoder for fine-tuning from every supported format."""

import numpy as np
import pytest
import safetensors.numpy

from bert_jax.errors import ConfigError
from bert_jax.loading import encoders, initialize
from bert_jax.loading import run as run_lib
from bert_jax.model import parameters
from tests.conftest import make_config, use_mesh
from tests.interop.test_google_tf1 import (
    random_variables,
    save_as_run_pretraining_does,
)
from tests.models import TOKENIZER, assert_same, change_json, change_tensors, tensors_of


def of_the_encoder(arrays):
    return {name: a for name, a in arrays.items() if name.startswith("bert.")}


def test_read_from_a_hugging_face_directory(source):
    directory, arrays = source
    found = encoders.read(str(directory), None)
    assert_same(found.arrays, of_the_encoder(arrays))
    assert found.config == make_config().model
    assert found.tokenizer == TOKENIZER and not found.notes


@pytest.mark.slow
def test_read_from_a_tf1_checkpoint(tmp_path):
    save_as_run_pretraining_does(tmp_path, random_variables())
    config = make_config(init_from=str(tmp_path))
    weights = initialize.read(initialize.open_source(config), config, TOKENIZER)
    found = encoders.read(str(tmp_path), True)
    assert_same(found.arrays, of_the_encoder(weights.arrays))
    assert found.config == config.model and found.tokenizer == TOKENIZER
    with pytest.raises(ConfigError, match="add --lowercase=true or --lowercase=false"):
        encoders.read(str(tmp_path), None)


def test_read_from_a_workdir(trained):
    use_mesh(1, 1, 1)
    run = run_lib.open_run(str(trained / "run"), None)
    found = encoders.read(str(trained / "run"), None)
    assert_same(found.arrays, of_the_encoder(parameters.by_name(run.params)))
    assert found.tokenizer == run.corpus.tokenizer
    assert found.config == run.config.model


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
    found = encoders.read(str(directory), None).arrays["bert.embeddings.word"]
    np.testing.assert_array_equal(found, table)


def test_first_layers_equal_those_of_the_full_encoder(source):
    found = encoders.read(str(source[0]), None)
    assert encoders.first_layers(found, 0) is found
    assert encoders.first_layers(found, 2) is found
    first = encoders.first_layers(found, 1)
    assert first.config.num_hidden_layers == 1
    left_out = found.arrays.keys() - first.arrays.keys()
    assert left_out and all(name.startswith("bert.layers.1.") for name in left_out)
    assert_same(first.arrays, {name: found.arrays[name] for name in first.arrays})
    with pytest.raises(ConfigError, match="config.num_layers=3, but the model has 2"):
        encoders.first_layers(found, 3)


def test_missing_pooler_is_reported(source):
    directory, _ = source
    tensors = {k: v for k, v in tensors_of(directory).items() if "pooler" not in k}
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    assert "no pooler" in encoders.read(str(directory), None).notes[0]


def test_errors_are_one_line(source):
    directory, _ = source

    def read(path=directory, lowercase=None):
        with pytest.raises(ConfigError) as error:
            encoders.read(str(path), lowercase)
        return str(error.value)

    assert "is not a directory; use a directory of python -m" in read("/nowhere")
    assert "has no config.json" in read(directory.parent)
    assert "--lowercase=false, but" in read(lowercase=False)
    change_json(directory, "config.json", num_hidden_layers=3)
    assert "lacks 16 of the encoder's tensors" in read()
    change_json(directory, "config.json", num_hidden_layers=2, intermediate_size=96)
    assert "does not match its own config in 6 tensor(s)" in read()
    change_json(directory, "config.json", intermediate_size=64)
    kernel = np.full((32, 32), np.nan, np.float32)
    change_tensors(
        directory, bert__encoder__layer__0__attention__output__dense__weight=kernel
    )
    assert "has NaN or infinity in bert.layers.0." in read()


def test_model_with_other_names_is_rejected(source):
    directory, _ = source
    renamed = {f"module.{name}": array for name, array in tensors_of(directory).items()}
    safetensors.numpy.save_file(renamed, directory / "model.safetensors")
    with pytest.raises(ConfigError, match="lacks .* of the encoder's tensors"):
        encoders.read(str(directory), None)
