"""Tests of bert_jax.loading.start."""

import dataclasses

import pytest

from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.distributed import multihost
from bert_jax.errors import ConfigError
from bert_jax.loading.start import find_corpus


def test_only_process_0_prepares_a_corpus(trained, tmp_path, monkeypatch):
    config = workdir_lib.read_config(str(trained / "run"))
    assert config is not None
    monkeypatch.setattr(multihost, "SHARED_SECS", 0)
    monkeypatch.setattr(multihost, "is_first", lambda: False)
    assert find_corpus(config) == corpus_lib.read(config)
    directory = tmp_path / "corpus"
    data = dataclasses.replace(config.data, corpus_dir=str(directory))
    with pytest.raises(ConfigError, match="has no manifest.json"):
        find_corpus(dataclasses.replace(config, data=data))
    assert not directory.exists()
