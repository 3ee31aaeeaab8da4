"""The config of a run that starts from a model has the values of the model."""

import dataclasses
import importlib
import json
import shutil

import pytest
from huggingface_hub import constants

from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.config import from_config_dict
from bert_jax.configs import base
from bert_jax.data.corpus import corpus
from bert_jax.distributed import multihost
from bert_jax.errors import ConfigError
from bert_jax.loading import new_run
from tests.commands import run_well, write_text
from tests.corpora import changed
from tests.models import VOCAB, change_json

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 32}
SHORT = {"phases[0].sequence_length": 16, "phases[0].max_predictions": 3}


def values_of(init_from, **changes):
    """Returns configs/continue.py with short rows; keys with __ for dots."""
    values = importlib.import_module("bert_jax.configs.continue").get_config()
    values.init_from = str(init_from)
    values.phases[0].sequence_length = 16
    values.phases[0].max_predictions = 3
    for key, value in changes.items():
        section, _, name = key.partition("__")
        values[section][name] = value
    return values


def test_sizes_vocabulary_and_case_are_those_of_the_model(directory):
    values = values_of(directory)
    config = new_run.complete(values)
    found = dataclasses.asdict(config.model)
    assert {name: found[name] for name in SIZES} == SIZES
    assert config.tokenizer.vocab_size == len(VOCAB) and config.tokenizer.lowercase
    assert values.model.hidden_size == 768  # the argument is not changed


def test_a_model_trained_without_dropout_continues_without_it(directory, tmp_path):
    hidden, attention = "hidden_dropout_prob", "attention_probs_dropout_prob"
    change_json(directory, "config.json", **{hidden: 0.1, attention: 0.0})
    values = values_of(
        directory, **{f"model__{hidden}": 0.3, f"model__{attention}": 0.2}
    )
    model = new_run.complete(values).model
    assert (model.hidden_dropout_prob, model.attention_probs_dropout_prob) == (0.3, 0)
    model = new_run.complete(values, [f"model.{attention}"]).model
    assert model.attention_probs_dropout_prob == 0.2
    # A run that has begun keeps its own rate.
    config = new_run.complete(values, [f"model.{attention}"])
    workdir_lib.write_config(str(tmp_path), config)
    assert new_run.complete(values, (), str(tmp_path)) == config


def test_the_case_of_the_model_precedes_that_of_the_config_file(directory):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).unlink(missing_ok=True)
    for lowercase in (True, False):  # the model does not record it
        config = new_run.complete(values_of(directory, tokenizer__lowercase=lowercase))
        assert config.tokenizer.lowercase is lowercase
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert not new_run.complete(values_of(directory)).tokenizer.lowercase


def test_without_a_model_the_config_is_that_of_the_file():
    assert new_run.complete(base.get_config()) == from_config_dict(base.get_config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model__hidden_size": 64},
            "config.model.hidden_size=64, but config.init_from",
        ),
        ({"model__hidden_act": "gelu"}, "needs 'gelu_new'; remove the flag"),
        (
            {"model__max_position_embeddings": 16},
            "=16, but .* needs 32; remove the flag",
        ),
        ({"tokenizer__vocab_size": 98}, "config.tokenizer.vocab_size=98, .* needs 97"),
        ({"tokenizer__lowercase": False}, "tokenizer.lowercase=False, .* needs True"),
    ],
)
def test_a_flag_that_contradicts_the_model_is_an_error(directory, changes, message):
    given = [key.replace("__", ".") for key in changes]
    with pytest.raises(ConfigError, match=message):
        new_run.complete(values_of(directory, **changes), given)


def test_a_length_of_another_type_in_the_model_is_an_error(directory):
    change_json(directory, "config.json", max_position_embeddings="32")
    with pytest.raises(ConfigError, match="needs '32'; remove the flag"):
        new_run.complete(values_of(directory), ["model.max_position_embeddings"])


def test_flags_may_repeat_the_model_and_add_positions_and_tokens(directory, tmp_path):
    longer = tmp_path / "vocab.txt"
    longer.write_text("\n".join([*VOCAB, "more", "tokens"]))
    changes = {
        "model__hidden_size": 32,
        "model__max_position_embeddings": 64,
        "tokenizer__vocab_file": str(longer),
    }
    given = [key.replace("__", ".") for key in changes]
    config = new_run.complete(values_of(directory, **changes), given)
    assert config.model.max_position_embeddings == 64
    assert config.tokenizer.vocab_size == len(VOCAB) + 2


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", None, "config.model is None; it must be a section"),
        ("tokenizer", None, "config.tokenizer is None; it must be a section"),
        ("init_from", "./x", "init_from='./x' does not exist"),
        ("init_from", "a\nb", "is not a path"),
    ],
)
def test_an_invalid_config_is_an_error(source, key, value, message):
    values = values_of(source[0])
    with values.ignore_type():
        values[key] = value
    with pytest.raises(ConfigError, match=message):
        new_run.complete(values)


def test_a_model_without_a_vocabulary_needs_one(directory):
    for name in ("tokenizer.json", "vocab.txt"):
        (directory / name).unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="has no tokenizer; copy its vocab.txt there"):
        new_run.complete(values_of(directory))


def test_a_run_that_has_begun_keeps_its_values(directory, tmp_path):
    """The model may be gone, or have changed."""
    values, workdir = values_of(directory), str(tmp_path)
    config = new_run.complete(values)
    workdir_lib.write_config(workdir, config)
    change_json(directory, "config.json", layer_norm_eps=1e-6)
    assert new_run.complete(values).model != config.model
    assert new_run.complete(values, (), workdir) == config
    shutil.rmtree(directory)
    assert new_run.complete(values, (), workdir) == config
    with pytest.raises(ConfigError, match="does not exist"):
        new_run.complete(values_of(f"{directory}2"), (), workdir)


def test_a_run_that_has_begun_knows_its_model_by_other_spellings(
    directory, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(directory.parent))
    workdir, spellings = str(tmp_path), [f"{directory}/", f"~/{directory.name}"]
    config = new_run.complete(values_of(spellings[0]))
    assert config.init_from == str(directory)
    workdir_lib.write_config(workdir, config)
    shutil.rmtree(directory)
    for spelling in spellings:
        assert new_run.complete(values_of(spelling), (), workdir) == config


@pytest.fixture
def hub(hub, source):
    """A Hub with the model owner/bert, and its commit."""
    files = {path.name: path.read_bytes() for path in source[0].iterdir()}
    return hub, hub.add("models/owner/bert", files).refs["main"]


def test_the_commit_of_a_model_on_the_hub_is_recorded(hub, monkeypatch, tmp_path):
    served, commit = hub
    values, workdir = values_of("owner/bert"), str(tmp_path)
    config = new_run.complete(values, ["init_from"])
    assert config.init_from == f"owner/bert@{commit}"
    # A newer commit does not change a run that has begun.
    workdir_lib.write_config(workdir, config)
    repository = served.repositories["models/owner/bert"]
    repository.commit(repository.files("main") | {"vocab.txt": b""})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("owner/bert", "hf://owner/bert", "owner/bert@main", config.init_from):
        values.init_from = name
        assert new_run.complete(values, ["init_from"], workdir) == config
    values.init_from = f"owner/bert@{'0' * 40}"
    with pytest.raises(ConfigError, match="is not a directory, and as a model on the"):
        new_run.complete(values, ["init_from"], workdir)


CONTINUE = ["--config=configs/continue.py", "--config.init_from=owner/bert"]
CONTINUE += [f"--config.{key}={value}" for key, value in SHORT.items()]
CONTINUE += ["--config.data.num_shards=1", "--config.data.num_streams=1"]


@pytest.mark.slow
def test_a_corpus_is_prepared_with_the_vocabulary_of_a_model_on_the_hub(hub, tmp_path):
    write_text(tmp_path / "text.txt")
    arguments = [
        *CONTINUE,
        f"--config.data.sources=text:{tmp_path}/text.txt",
        f"--config.data.corpus_dir={tmp_path / 'corpus'}",
    ]
    environment = hub[0].environment(tmp_path / "home")
    stdout = run_well("bert_jax.prepare", *arguments, **environment)
    assert "tokenizer: training" not in stdout and "documents" in stdout
    lines = (tmp_path / "corpus/vocab.txt").read_text().splitlines()
    assert tuple(lines) == VOCAB
    manifest = json.loads((tmp_path / "corpus" / corpus.MANIFEST).read_text())
    assert manifest["recipe"]["tokenizer.vocab_size"] == len(VOCAB)
    offline = environment | {"HF_HUB_OFFLINE": "1"}
    stdout = run_well("bert_jax.inspect_batch", *arguments, "--rows=1", **offline)
    assert "row 1 of " in stdout


def test_only_process_0_prepares_a_corpus(trained, tmp_path, monkeypatch):
    config = workdir_lib.read_config(str(trained / "run"))
    assert config is not None
    monkeypatch.setattr(multihost, "SHARED_SECS", 0)
    monkeypatch.setattr(multihost, "is_first", lambda: False)
    assert new_run.find_corpus(config) == corpus.read(config)
    directory = tmp_path / "corpus"
    with pytest.raises(ConfigError, match="has no manifest.json"):
        new_run.find_corpus(changed(config, "data", corpus_dir=str(directory)))
    assert not directory.exists()
