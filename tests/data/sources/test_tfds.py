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


def test_slices_cover_the_split(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))

    def slices(argument, count):
        return tfds_lib.TensorFlowDataset(f"tfds:{argument}").slices(count)

    name = "tiny_bert_numbers"
    spec = f"tfds:{name}"
    assert slices(name, 3) == [f"{spec}:train[{r}]" for r in ("0:6", "6:13", "13:20")]
    assert slices(f"{name}:1.0.0:train[-2:]#n.m", 5) == [
        f"{spec}:1.0.0:train[{r}]#n.m" for r in ("18:19", "19:20")
    ]
    assert slices(f"{name}:train[10%:20%]+train[:4]", 2) == [
        f"{spec}:train[{r}]" for r in ("2:3", "3:4", "0:2", "2:4")
    ]
    with pytest.raises(ConfigError, match="config.data.sources: tiny_bert_numbers has"):
        slices(f"{name}:dev", 2)


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
