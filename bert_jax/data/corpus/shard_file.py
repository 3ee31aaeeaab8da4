"""Reads, writes and verifies shard files.

TFRecord has a checksum of every record. A corrupt file is read a second time, because
the data may have been corrupted in transit, by the network or the machine's memory.

With config.data.word_segmented, the top bit of a stored id marks an ideograph that
continues the word of the ideograph before it.
"""

import itertools
import os
import sys
from typing import TYPE_CHECKING

import numpy as np

from bert_jax import digests, storage
from bert_jax.errors import CorruptError, MissingObjectError
from bert_jax.lazy_tensorflow import tf

if TYPE_CHECKING:
    from bert_jax.data.corpus import keyed

# A record has 128 kB or more; a call into tf.data takes as long as copying one.
RECORDS_AT_A_TIME = 32
AGAIN = "prepare the corpus again in an empty directory"

Blocks = dict[str, list[np.ndarray]]  # by name, one array per record


def read(path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads the token ids, sentence lengths and document lengths of a file."""
    problem = "a record has a wrong checksum"
    try:
        blocks = storage.with_retries(lambda: _read_blocks(path), path)
    except tf.errors.DataLossError:
        try:
            blocks = storage.with_retries(lambda: _read_blocks(path), path)
        except tf.errors.DataLossError:
            raise CorruptError(f"{path} is corrupt ({problem}); {AGAIN}") from None
        print(
            f"storage: {path}: {problem}, but it was correct when read again; check the"
            " memory and the network of this machine",
            file=sys.stderr,
        )
    if not blocks["token_ids"]:
        raise CorruptError(f"{path} is empty or truncated; {AGAIN}")
    tokens, sentence_lengths, document_lengths = map(np.concatenate, blocks.values())
    return tokens, sentence_lengths, document_lengths


def verify(path: str, num_bytes: int, sha256: str | None) -> None:
    """Raises CorruptError if a file has another size or, if it is given, digest."""
    size = storage.stat(path).num_bytes
    if size != num_bytes:
        problem = f"has {size} bytes, but the manifest lists {num_bytes}"
    elif sha256 is None or any(digests.sha256(path) == sha256 for _ in range(2)):
        return
    else:
        problem = "is corrupt: its sha256 is not the one in the manifest"
    raise CorruptError(f"{path} {problem}; {AGAIN}")


def write(
    path: str, documents: "keyed.Documents", blocks: list[np.ndarray]
) -> tuple[int, str]:
    """Writes a record per block of indices; returns the file's size and SHA-256."""

    def fill(tmp: str) -> tuple[int, str]:
        with tf.io.TFRecordWriter(tmp) as file:
            for block in blocks:
                file.write(_to_record(documents.select(block)))
        return os.path.getsize(tmp), digests.sha256(tmp)

    return storage.write_with(path, fill)


def _to_record(block: "keyed.Documents") -> bytes:
    arrays = {
        "dtype": np.frombuffer(block.token_ids.dtype.name.encode(), np.uint8),
        "token_ids": block.token_ids,
        "sentence_lengths": block.sentence_lengths,
        "document_lengths": block.records["num_sentences"],
    }
    feature = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[array.tobytes()]))
        for name, array in arrays.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return example.SerializeToString(deterministic=True)


def _read_blocks(path: str) -> Blocks:
    blocks: Blocks = {"token_ids": [], "sentence_lengths": [], "document_lengths": []}
    options = tf.data.Options()
    options.autotune.enabled = False  # it would warn that there is nothing to tune
    try:
        with storage.local_copy(path) as copy:
            records = tf.data.TFRecordDataset(copy).batch(RECORDS_AT_A_TIME)
            batches = records.with_options(options).as_numpy_iterator()
            for record in itertools.chain.from_iterable(batches):
                feature = tf.train.Example.FromString(record).features.feature
                dtype = feature["dtype"].bytes_list.value[0].decode()
                for name, arrays in blocks.items():
                    data = feature[name].bytes_list.value[0]
                    kind = dtype if name == "token_ids" else np.uint32
                    arrays.append(np.frombuffer(data, kind))
    except (MissingObjectError, tf.errors.NotFoundError):
        raise CorruptError(f"{path} is missing; {AGAIN}") from None
    return blocks


def mark(dtype: np.dtype) -> np.integer:
    return dtype.type(1 << (8 * dtype.itemsize - 1))


def split_marks(marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Splits marked ids into ids without the top bit, and bool marks."""
    bit = mark(marked.dtype)
    return marked & ~bit, marked >= bit
