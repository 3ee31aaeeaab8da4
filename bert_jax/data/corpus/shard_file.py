"""A shard's file, read: records of raw arrays, and what is wrong with them.

TFRecord keeps a checksum of every record. What is damaged is read a second time, since
it may have been so only on its way: by a network, by this machine's memory.
"""

import hashlib
import itertools
import sys
from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError

from bert_jax import storage
from bert_jax.errors import CorruptError
from bert_jax.lazy_tensorflow import tf

# Of 128 kB and more: a call into tf.data costs as much as copying one.
RECORDS_AT_A_TIME = 32
AGAIN = "prepare the corpus again in an empty directory"

Blocks = dict[str, list[np.ndarray]]  # by name, an array a record


def read(path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns token ids, sentence lengths and document lengths of a whole file.

    Raises:
      CorruptError: when it is missing or damaged; names its first bad record.
    """
    try:
        blocks = storage.with_retries(lambda: _read_blocks(path), path)
    except tf.errors.DataLossError:
        try:
            blocks = storage.with_retries(lambda: _read_blocks(path), path)
        except tf.errors.DataLossError as error:
            reason = error.message.splitlines()[0] + _first_bad_record(path)
            raise CorruptError(f"{path} cannot be read ({reason}); {AGAIN}") from None
        _say_read_again(path, "a record's checksum was wrong")
    if not blocks["token_ids"]:
        raise CorruptError(f"{path} is empty or cut off; {AGAIN}")
    tokens, sentence_lengths, document_lengths = (
        np.concatenate(arrays) for arrays in blocks.values()
    )
    return tokens, sentence_lengths, document_lengths


def damage(path: str, num_bytes: int, sha256: str | None) -> str | None:
    """Returns what is wrong with a file, or None.

    Args:
      path: of a file that is there.
      num_bytes: that it must have.
      sha256: that it must have; None to ask only for its size.
    """
    found, _ = storage.stat(path)
    if found != num_bytes:
        return f"{path} has {found} bytes, its manifest says {num_bytes}"
    if sha256 is None or digest(path) == (num_bytes, sha256):
        return None
    if digest(path) == (num_bytes, sha256):
        _say_read_again(path, "its sha256 was not the manifest's")
        return None
    where = _first_bad_record(path)
    return f"{path} was changed: its sha256 is not the manifest's{where}"


def digest(path: str) -> tuple[int, str]:
    """Returns the bytes of a file and their sha256."""
    sha256, num_bytes = hashlib.sha256(), 0
    with storage.Reader(path) as file:
        while data := file.read(2**20):
            sha256.update(data)
            num_bytes += len(data)
    return num_bytes, sha256.hexdigest()


def _read_blocks(path: str) -> Blocks:
    blocks: Blocks = {
        "token_ids": [],
        "sentence_lengths": [],
        "document_lengths": [],
    }
    try:
        for record in _records(path, RECORDS_AT_A_TIME):
            feature = tf.train.Example.FromString(record).features.feature
            dtype = feature["dtype"].bytes_list.value[0].decode()
            for name, arrays in blocks.items():
                data = feature[name].bytes_list.value[0]
                kind = dtype if name == "token_ids" else np.uint32
                arrays.append(np.frombuffer(data, kind))
    except tf.errors.NotFoundError:
        raise CorruptError(f"{path} cannot be read (it is missing); {AGAIN}") from None
    except (DecodeError, IndexError, TypeError, ValueError):
        raise CorruptError(f"{path} has a record that is no block; {AGAIN}") from None
    return blocks


def _records(path: str, at_a_time: int) -> Iterator[bytes]:
    records = tf.data.TFRecordDataset(path).batch(at_a_time)
    options = tf.data.Options()
    options.autotune.enabled = False  # there is nothing to tune, and it warns
    records = records.with_options(options)
    return itertools.chain.from_iterable(records.as_numpy_iterator())


def _first_bad_record(path: str) -> str:
    """Returns which record is bad and where it begins, "" when all are good."""
    number = offset = 0
    try:
        for record in _records(path, 1):
            number, offset = number + 1, offset + len(record) + 16
    except tf.errors.DataLossError:
        return f"; record {number} is bad, from byte {offset} on"
    return ""


def _say_read_again(path: str, problem: str) -> None:
    print(
        f"storage: {path}: {problem}, but not when it was read again; look to this"
        " machine's memory and network",
        file=sys.stderr,
        flush=True,
    )
