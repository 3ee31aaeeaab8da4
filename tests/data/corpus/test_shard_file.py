"""Tests of bert_jax.data.corpus.shard_file."""

import os
import pathlib

import numpy as np
import pytest

from bert_jax import digests, storage
from bert_jax.data.corpus import keyed, shard_file
from bert_jax.errors import ConfigError, CorruptError, StorageError
from bert_jax.lazy_tensorflow import tf
from tests.commands import flip
from tests.data.corpus.test_keyed import entries


def block(tokens):
    """Returns a record of one document of one sentence."""
    arrays = {
        "dtype": np.frombuffer(b"uint16", np.uint8),
        "token_ids": np.array(tokens, np.uint16),
        "sentence_lengths": np.array([len(tokens)], np.uint32),
        "document_lengths": np.array([1], np.uint32),
    }
    feature = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[array.tobytes()]))
        for name, array in arrays.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return example.SerializeToString(deterministic=True)


def test_a_disk_that_fails_is_read_again(slept, monkeypatch):
    def read_blocks(path):  # as TensorFlow 2.21 reads /proc/self/mem
        raise tf.errors.UnknownError(None, None, f"{path}; Input/output error")

    monkeypatch.setattr(shard_file, "_read_blocks", read_blocks)
    with pytest.raises(StorageError, match="x: storage failed 7 times"):
        shard_file.read("x")
    assert len(slept) == 6


@pytest.fixture
def shard(tmp_path):
    """The path of a file of three records, and their offsets."""
    path, offsets = str(tmp_path / "shard"), [0]
    with tf.io.TFRecordWriter(path) as file:
        for tokens in ([1, 2, 3], [4] * 50, [5, 6]):
            file.write(block(tokens))
            offsets.append(offsets[-1] + len(block(tokens)) + 16)
    return path, offsets


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_bad_record_is_detected(shard, number):
    path, offsets = shard
    num_bytes, sha256 = os.path.getsize(path), digests.sha256(path)
    flip(path, 8 * (offsets[number] + 20))
    with pytest.raises(CorruptError, match=f"{path} is corrupt .a record has a wr"):
        shard_file.read(path)
    with pytest.raises(CorruptError, match=f"{path} is corrupt: its sha256 is not"):
        shard_file.verify(path, num_bytes, sha256)


def test_data_corrupted_in_transit_is_read_again(shard, capfd, monkeypatch):
    path, offsets = shard
    bit = 8 * (offsets[1] + 20)
    flip(path, bit)
    reads, read_blocks = [], shard_file._read_blocks

    def read_and_mend(path):
        reads.append(path)
        if len(reads) == 2:
            flip(path, bit)
        return read_blocks(path)

    monkeypatch.setattr(shard_file, "_read_blocks", read_and_mend)
    assert len(shard_file.read(path)[0]) == 55
    assert "wrong checksum, but it was correct when read again" in capfd.readouterr()[1]


def test_errors_of_a_bucket_are_not_corrupt_shards(shard, bucket):
    storage.write("gs://b/shard", pathlib.Path(shard[0]).read_bytes())
    assert shard_file.read("gs://b/shard")[0].size == 55
    bucket.faults = {"/download/": [403] * 9}
    with pytest.raises(ConfigError, match="permission denied") as caught:
        shard_file.read("gs://b/shard")
    assert not isinstance(caught.value, CorruptError)
    with pytest.raises(CorruptError, match="^gs://b/none is missing"):
        shard_file.read("gs://b/none")


def test_a_write_to_a_bucket_is_repeated_after_a_transient_error(tmp_path, bucket):
    documents = keyed.from_entries(entries(30), np.dtype(np.uint16))
    blocks = [np.arange(12), np.arange(12, 30)]
    expected = shard_file.write(str(tmp_path / "shard"), documents, blocks)
    bucket.faults = {"^(POST|PUT) /upload": [503]}
    assert shard_file.write("gs://b/shard", documents, blocks) == expected
    assert not bucket.faults["^(POST|PUT) /upload"]
    assert storage.read("gs://b/shard") == (tmp_path / "shard").read_bytes()
