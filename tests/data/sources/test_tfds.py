"""Tests of bert_jax.data.sources.tfds: preparing and reading datasets, and errors."""

import time

import numpy as np
import pytest
import tensorflow_datasets as tfds

from bert_jax.data.sources import tfds as tfds_lib
from bert_jax.errors import ConfigError
from tests.data.sources import test_sources


def read(*args, **options):
    return test_sources.read("tfds", *args, **options)


class TinyBertTexts(tfds.core.GeneratorBasedBuilder):
    """A dataset of 20 texts, found by tfds.builder("tiny_bert_texts")."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "body": tfds.features.Text(),
            "n": tfds.features.Scalar(np.int64),
            "page": {"html": tfds.features.Text()},
        }
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(20):
            body = f"Text {i} begins. It goes on.\nCaf\u00e9."
            yield i, {"body": body, "n": i, "page": {"html": f"Page {i}."}}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    return tmp_path


def test_tfds(directory):
    found = read("tiny_bert_texts", "#body")
    expected = [[f"Text {i} begins.", "It goes on.", "Caf\u00e9."] for i in range(20)]
    assert sorted(found) == sorted(expected)
    assert (directory / "tiny_bert_texts" / "1.0.0").is_dir()
    # The prepared dataset is read again, in the same order.
    assert read("tiny_bert_texts", "#body") == found


def test_tfds_split_version_and_field_path():
    everything = read("tiny_bert_texts:1.0.0", "#page.html")
    assert sorted(everything) == sorted([f"Page {i}."] for i in range(20))
    part = read("tiny_bert_texts:train[:10%]", "#page.html")
    assert part == everything[:2]
    part = read("tiny_bert_texts:1.0.0:train[18:]", "#page.html")
    assert part == everything[18:]


class TinyBertText(TinyBertTexts):
    """A dataset with a field "text" and another text field."""

    def _info(self):
        features = {"other": tfds.features.Text(), "text": tfds.features.Text()}
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(features)
        )

    def _generate_examples(self):
        yield 0, {"other": "Other.", "text": b"Caf\xe9 one. Two."}


def test_tfds_field_text_is_the_default():
    assert read("tiny_bert_text:train", invalid_utf8="replace") == [
        ["Caf\ufffd one.", "Two."]
    ]
    with pytest.raises(ConfigError, match="tiny_bert_text train:1 is not UTF-8"):
        read("tiny_bert_text")


@pytest.mark.parametrize(
    "spec, message",
    [
        ("tiny_bert_texts", "no single column of text; .* body, page.html"),
        (
            "tiny_bert_texts#text",
            "tiny_bert_texts has no column 'text' of text; .* body",
        ),
        ("tiny_bert_texts#n", "has no column 'n' of text; .* #column: body, page.html"),
        ("tiny_bert_texts:test#body", "no split 'test'; use one of train, .*10%"),
        ("tiny_bert_texts:train[:x]#body", r"no split 'train\[:x\]'; use one of train"),
        ("tiny_bert_texts:7.0.0#body", "has no 'tiny_bert_texts:7.0.0': "),
        ("no_such_tiny_texts#text", "has no 'no_such_tiny_texts': .*; choose"),
        ("#text", "write tfds:NAME"),
    ],
)
def test_tfds_errors(spec, message):
    with pytest.raises(ConfigError, match=message):
        read(spec)


class TinyBertRemote(TinyBertTexts):
    """A dataset at an address where nothing answers."""

    def _split_generators(self, dl_manager):
        dl_manager.download("http://127.0.0.1:9/texts.zip")
        return {"train": self._generate_examples()}


def test_a_download_without_a_network_is_announced_and_ends_within_seconds(
    directory, capsys
):
    builder = tfds_lib.builder("tiny_bert_remote", "config.here")
    start = time.monotonic()
    with pytest.raises(ConfigError) as error:
        tfds_lib.prepare(builder, "config.here")
    assert time.monotonic() - start < 60  # 200 s with the library's retries
    assert "127.0.0.1" in str(error.value)
    assert "; without a network, use local files" in str(error.value)
    assert f"or copy {directory}/tiny_bert_remote/1.0.0 from" in str(error.value)
    (line,) = capsys.readouterr().out.splitlines()[:1]
    assert line.startswith("config.here: TensorFlow Datasets downloads 'tiny_bert_rem")
    assert f"prepares it in {directory}/tiny_bert_remote/1.0.0, once; a large" in line
