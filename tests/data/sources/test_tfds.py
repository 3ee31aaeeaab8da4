"""Tests of bert_jax.data.sources.tfds: preparing and reading datasets, and errors."""

import time

import numpy as np
import pytest
import tensorflow_datasets as tfds

from bert_jax.data.sources import tfds as tfds_lib
from bert_jax.errors import ConfigError


class TinyBertNumbers(tfds.core.GeneratorBasedBuilder):
    """A dataset of 20 numbers, found by tfds.builder("tiny_bert_numbers")."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict({"n": tfds.features.Scalar(np.int64)})
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(20):
            yield i, {"n": i}


def test_a_split_is_always_read_in_the_same_order(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    builder = tfds_lib.builder("tiny_bert_numbers", "config.here")

    def read(split):
        dataset = tfds_lib.dataset(builder, split, "config.here")
        return [int(example["n"]) for example in dataset.as_numpy_iterator()]

    everything = read("train")
    assert sorted(everything) == list(range(20))
    assert read("train[10%:]") == everything[2:]
    with pytest.raises(ConfigError, match="config.here: tiny_bert_numbers has no sp"):
        read("dev")


def test_unknown_datasets_and_versions_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    for name in ("tiny_bert_nothing", "tiny_bert_numbers:7.0.0"):
        with pytest.raises(ConfigError, match=f"config.here: .* has no '{name}'"):
            tfds_lib.builder(name, "config.here")


class TinyBertRemote(TinyBertNumbers):
    """A dataset at an address where nothing answers."""

    def _split_generators(self, dl_manager):
        dl_manager.download("http://127.0.0.1:9/numbers.zip")
        return {"train": self._generate_examples()}


def test_a_download_without_a_network_is_announced_and_ends_within_seconds(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    builder = tfds_lib.builder("tiny_bert_remote", "config.here")
    start = time.monotonic()
    with pytest.raises(ConfigError) as error:
        tfds_lib.prepare(builder, "config.here")
    assert time.monotonic() - start < 60  # 200 s with the library's retries
    assert "no connection to 127.0.0.1; without a network, use" in str(error.value)
    assert f"or copy {tmp_path}/tiny_bert_remote/1.0.0 from" in str(error.value)
    (line,) = capsys.readouterr().out.splitlines()[:1]
    assert line.startswith("config.here: TensorFlow Datasets downloads 'tiny_bert_rem")
    assert f"prepares it in {tmp_path}/tiny_bert_remote/1.0.0, once; a large" in line
