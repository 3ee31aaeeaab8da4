"""Tests of reading a model and its config from a directory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError
from bert_jax.interop import files, huggingface_write
from bert_jax.loading import model as model_lib
from bert_jax.model import heads
from tests.conftest import make_config, use_mesh
from tests.finetuning import tuned
from tests.models import TOKENIZER, change_json, change_tensors, tensors_of

F32 = jnp.dtype(jnp.float32)


def write(directory, kind="classification"):
    config, graphdef, params = tuned.build(kind)
    huggingface_write.write_tuned(
        directory, params, config, tuned.HEADS[kind], TOKENIZER, 32
    )
    return config, graphdef, params


@pytest.mark.parametrize("kind", heads.KINDS)
def test_tuned_model_round_trips(kind, tmp_path):
    config, graphdef, params = write(tmp_path, kind)
    found = model_lib.read_tuned(str(tmp_path))
    assert found.config == config
    assert found.head == tuned.HEADS[kind]
    assert found.tokenizer == TOKENIZER
    assert found.graphdef == graphdef
    jax.tree.map(np.testing.assert_array_equal, found.params, params)


def test_read_encoder_ignores_heads_and_places_it_on_the_mesh(source):
    directory, arrays = source
    use_mesh(2, 2, 2)
    found = model_lib.read_encoder(str(directory))
    kernel = found.params["layers"][1]["output"]["kernel"][...]
    np.testing.assert_array_equal(kernel, arrays["bert.layers.1.output.kernel"])
    assert kernel.sharding.spec == jax.P("tensor", "fsdp")
    assert found.head is None


@pytest.mark.parametrize("kind", config_lib.TOKENIZER_KINDS)
def test_tokenizer_is_read_from_the_directory(kind, tmp_path):
    texts = [[f"the garden {i} and the river {i * 7}."] for i in range(200)]
    config = make_config(tokenizer__kind=kind).tokenizer
    tokenizer = tokenizers.train(texts, config)
    model_config, _, params = tuned.build("tagging")
    huggingface_write.write_tuned(
        tmp_path, params, model_config, tuned.HEADS["tagging"], tokenizer, 32
    )
    assert model_lib.read_encoder(str(tmp_path)).tokenizer == tokenizer


def test_logits_of_a_model_saved_by_transformers(tmp_path):
    """Reads a model saved by transformers: newer names, and only tokenizer.json."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    write(tmp_path)
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "saved")
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(
        tmp_path / "saved"
    )
    found = model_lib.read_tuned(str(tmp_path / "saved"))
    batch = tuned.make_batch("classification")
    bert = nnx.merge(found.graphdef, found.params)
    logits = bert(batch, dropout_key=None, dtype=F32).logits
    with torch.no_grad():
        expected = theirs.eval()(
            input_ids=torch.tensor(batch["input_ids"]).long(),
            token_type_ids=torch.tensor(batch["segment_ids"]).long(),
            attention_mask=torch.tensor(batch["sequence_ids"]).long(),
        ).logits.numpy()
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    assert found.tokenizer == TOKENIZER


def test_errors_are_one_line(tmp_path):
    def read(path=tmp_path):
        with pytest.raises(ConfigError) as error:
            model_lib.read_tuned(str(path))
        return str(error.value)

    assert "is not a directory" in read(tmp_path / "nowhere")
    assert "has no config.json" in read()
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").touch()
    assert read(tmp_path / "run").endswith(f"; use {tmp_path / 'run'}/model")
    (tmp_path / "run" / "checkpoints").mkdir()
    assert f"bert_jax.export --workdir={tmp_path / 'run'}" in read(tmp_path / "run")
    write(tmp_path)
    change_json(tmp_path, "config.json", hidden_size="wide")
    assert "hidden_size is 'wide'" in read()
    change_json(tmp_path, "config.json", hidden_size=33)
    assert "is not a multiple of num_attention_heads" in read()
    change_json(tmp_path, "config.json", hidden_size=64)
    assert "but its config.json implies" in read()
    change_json(tmp_path, "config.json", hidden_size=32, hidden_act="relu")
    assert "hidden_act='relu'" in read()
    change_json(tmp_path, "config.json", hidden_act="gelu", num_hidden_layers=0)
    assert "num_hidden_layers=0" in read()
    change_json(tmp_path, "config.json", num_hidden_layers=3)
    assert "lacks 16 of the model's tensors" in read()
    change_json(tmp_path, "config.json", num_hidden_layers=2, vocab_size=96)
    assert "but its config.json implies [96, 32]" in read()


def test_invalid_tokenizer_is_an_error(tmp_path):
    write(tmp_path)
    for name, key in (("tokenizer.json", "normalizer"), ("tokenizer_config.json", "")):
        content = storage.read_json(tmp_path / name)
        content.pop(key or "do_lower_case")
        storage.write_json(tmp_path / name, content)
    with pytest.raises(ConfigError, match='"do_lower_case": true'):
        model_lib.read_encoder(str(tmp_path))
    change_json(tmp_path, "tokenizer_config.json", do_lower_case=True)
    assert model_lib.read_encoder(str(tmp_path)).tokenizer.lowercase
    (tmp_path / "tokenizer.json").unlink()
    with (tmp_path / "vocab.txt").open("a") as file:
        file.write("more\n")
    with pytest.raises(ConfigError, match="has 98 tokens, more than the 97"):
        model_lib.read_encoder(str(tmp_path))
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(ConfigError, match="has no tokenizer"):
        model_lib.read_encoder(str(tmp_path))


def test_changed_file_of_a_tuned_model_is_an_error(tmp_path):
    write(tmp_path)
    files.write_digests(tmp_path)
    change_tensors(tmp_path, classifier__bias=np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="SHA256SUMS"):
        model_lib.read_tuned(str(tmp_path))


def test_shape_that_differs_from_config_json_is_an_error(tmp_path):
    write(tmp_path)
    tensors = tensors_of(tmp_path)
    tensors["classifier.weight"] = tensors["classifier.weight"][:2]
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="classifier.kernel as"):
        model_lib.read_tuned(str(tmp_path))
