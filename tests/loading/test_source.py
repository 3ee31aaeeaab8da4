"""Weights are opened from any format, and checked against the wanted shapes."""

import pytest

from bert_jax import storage
from bert_jax.errors import ConfigError
from bert_jax.loading import model as model_lib
from bert_jax.loading import source as source_lib
from tests.models import assert_same, encoder_of, tensors_of

WORD, KERNEL = "bert.embeddings.word", "bert.pooler.kernel"


def test_only_the_wanted_tensors_are_read(source):
    directory, arrays = source
    found = source_lib.open_source(directory, "")
    assert found.sizes["hidden_size"] == 32
    assert found.shapes == {name: array.shape for name, array in arrays.items()}
    assert_same(found.read([KERNEL]), {KERNEL: arrays[KERNEL]})
    assert len(found.unused([WORD, KERNEL])) == len(tensors_of(directory)) - 2


def test_a_model_in_a_bucket_is_downloaded(source, bucket):
    directory, arrays = source
    storage.upload(str(directory), "gs://b/some/model")
    copy = source_lib.local_path("gs://b/some/model/", "--model")
    with pytest.raises(ConfigError, match="^--model=gs://b/none: there is no file"):
        source_lib.local_path("gs://b/none", "--model")
    assert storage.files(str(copy)) == storage.files(str(directory))
    found = source_lib.open_source(copy, "")
    assert_same(found.read([KERNEL]), {KERNEL: arrays[KERNEL]})
    storage.remove_scratch()  # also at the end of the process
    assert not copy.exists()


def test_a_model_on_the_hub_is_read_from_its_cache(source, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a directory without models
    directory, arrays = source
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    commit = hub.add("models/owner/bert", files).refs["main"]
    assert_same(model_lib.read_encoder("owner/bert").arrays, encoder_of(arrays))
    assert source_lib.pinned("owner/bert", "--model") == f"owner/bert@{commit}"
    # A local directory of the same name is read instead.
    (tmp_path / "owner").mkdir()
    directory.rename(tmp_path / "owner/bert")
    num_requests = len(hub.requests)
    assert source_lib.model_path("owner/bert", "--model") == tmp_path / "owner/bert"
    assert source_lib.pinned("owner/bert", "--model") == "owner/bert"
    with pytest.raises(ConfigError, match="^--model=owner/bart does not exist; use"):
        model_lib.read_encoder("owner/bart")
    assert len(hub.requests) == num_requests


def test_pickles_on_the_hub_are_refused_with_the_conversion(hub):
    hub.add("models/owner/old", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(ConfigError) as error:
        source_lib.model_path("owner/old", "config.init_from")
    assert "config.init_from=owner/old has no model.safetensors on" in str(error.value)
    assert "d, to = 'owner/old', 'NEW_DIRECTORY'" in str(error.value)
    with pytest.raises(ConfigError, match="at = dict.revision='main'"):
        source_lib.model_path("owner/old@main", "config.init_from")
