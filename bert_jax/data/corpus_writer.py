"""Encoded documents -> the token corpus on disk, in the format that corpus.py reads.

Each shard is written on its own from the documents that belong to it, so it does not
matter who writes which; the manifest comes last.
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax import storage
from bert_jax.config import ConfigError, DataConfig, ExperimentConfig
from bert_jax.data import (
    corpus,
    encoding,
    pairs,
    row_counts,
    shard_file,
    sorted_runs,
    tokenizers,
)
from bert_jax.data.quiet_tensorflow import tf

# Tokens that make a record, or more by the rest of a document.
BLOCK_TOKENS = 2**16
# Of the token ids of a shard: readers hold a whole one in memory, the writer two.
MAX_SHARD_BYTES = 2**28


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    shard: corpus.Shard | None  # None: no document came here, and there is no file
    counts: row_counts.Counts  # {} where there is no shard
    num_repeated: int  # documents that were there already
    num_copies: int  # further copies, by source weights

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def read_written(path: str) -> WrittenShard:
    """Reads the result file of a finished shard."""
    values = json.loads(storage.read(path))
    shard = values.pop("shard")
    return WrittenShard(shard and corpus.Shard(**shard), **values)


def file_name(data: DataConfig, shard: int) -> str:
    if shard == encoding.validation_shard(data):
        return "validation-00000-of-00001"
    return f"train-{shard:05d}-of-{data.num_shards:05d}"


class Merge(NamedTuple):
    """What makes one shard of runs: a task for a process."""

    path: str  # of the shard
    shard: int
    runs: tuple[str, ...]
    id_dtype: np.dtype
    result: str  # path of the file that says that the shard is finished


def merge(task: Merge) -> None:
    """Writes a shard from the runs, then what it is to its result file."""
    segments = [
        sorted_runs.read_segment(run, task.shard, task.id_dtype) for run in task.runs
    ]
    written = write_shard(task.path, segments)
    storage.write(task.result, written.to_json().encode())


def write_shard(path: str, segments: list[sorted_runs.Segment]) -> WrittenShard:
    """Writes one shard, its documents ordered by key, repeated ones left out.

    The same documents make the same file, however they are spread over segments.

    Args:
      path: of the shard; nothing is written when there is no document.
      segments: all that belongs to the shard.

    Raises:
      ConfigError: when that is too much for one shard.
    """
    _check_size(path, segments)
    everything = sorted_runs.Segment(*map(np.concatenate, zip(*segments, strict=True)))
    order, num_repeated = _distinct(everything)
    if not len(order):
        return WrittenShard(None, {}, 0, 0)
    documents = pairs.Documents.from_lengths(
        everything.sentence_lengths, everything.document_lengths
    )

    def fill(tmp: str) -> tuple[int, str]:
        with tf.io.TFRecordWriter(tmp) as file:
            for block in _blocks(documents, order):
                file.write(_to_record(_gather(everything, documents, block)))
        return shard_file.digest(tmp)

    num_bytes, sha256 = storage.write_with(path, fill)
    written = _shape(documents, order)
    shard = corpus.Shard(
        file=os.path.basename(path),
        num_documents=len(order),
        num_sentences=int(written.sentence_offsets[-1]),
        num_tokens=int(written.token_offsets[-1]),
        num_bytes=num_bytes,
        sha256=sha256,
    )
    return WrittenShard(
        shard=shard,
        counts=row_counts.count(written),
        num_repeated=num_repeated,
        num_copies=int(np.count_nonzero(everything.copies[order])),
    )


def _check_size(path: str, segments: list[sorted_runs.Segment]) -> None:
    num_bytes = sum(segment.token_ids.nbytes for segment in segments)
    if num_bytes > MAX_SHARD_BYTES:
        factor = num_bytes / MAX_SHARD_BYTES
        raise ConfigError(
            f"{path} would hold {num_bytes / 2**20:,.0f} MB of token ids, and readers"
            f" keep a whole shard in memory: at most {MAX_SHARD_BYTES / 2**20:,.0f} MB;"
            f" make config.data.num_shards {factor:.1f} times what it is, or"
            " config.data.validation_fraction smaller if it is the held-out shard"
        )


def _distinct(segment: sorted_runs.Segment) -> tuple[np.ndarray, int]:
    """Returns the first document of every key, by key, and how many repeat another."""
    high, low = segment.keys.T
    order = np.lexsort((low, high))
    is_first = np.ones(len(order), bool)
    is_first[1:] = np.any(np.diff(segment.keys[order], axis=0) != 0, axis=1)
    # A repeated document repeats its further copies too; it is counted once.
    num_repeated = np.count_nonzero(segment.copies[order[~is_first]] == 0)
    return order[is_first], int(num_repeated)


def _blocks(documents: pairs.Documents, order: np.ndarray) -> Iterator[np.ndarray]:
    """Yields runs of `order` of a record each."""
    first_tokens = documents.token_offsets[documents.sentence_offsets]
    ends = np.cumsum(np.diff(first_tokens)[order])
    start = done = 0
    while start < len(order):
        stop = int(np.searchsorted(ends, done + BLOCK_TOKENS)) + 1
        yield order[start:stop]
        start, done = stop, int(ends[min(stop, len(order)) - 1])


def _gather(
    segment: sorted_runs.Segment, documents: pairs.Documents, order: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the arrays of a record that holds the documents of `order`."""
    sentences = _ranges(documents.sentence_offsets, order)
    return {
        "token_ids": segment.token_ids[_ranges(documents.token_offsets, sentences)],
        "sentence_lengths": segment.sentence_lengths[sentences],
        "document_lengths": segment.document_lengths[order],
    }


def _shape(documents: pairs.Documents, order: np.ndarray) -> pairs.Documents:
    """Returns the lengths of the documents of `order`, in that order."""
    sentences = _ranges(documents.sentence_offsets, order)
    return pairs.Documents.from_lengths(
        np.diff(documents.token_offsets)[sentences],
        np.diff(documents.sentence_offsets)[order],
    )


def _ranges(offsets: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns offsets[i], ..., offsets[i + 1] - 1 for each i of `order`."""
    lengths = np.diff(offsets)[order]
    ends = np.cumsum(lengths)
    return np.repeat(offsets[order] - ends + lengths, lengths) + np.arange(ends[-1])


def _to_record(arrays: dict[str, np.ndarray]) -> bytes:
    features = {
        "dtype": np.frombuffer(arrays["token_ids"].dtype.name.encode(), np.uint8)
    } | arrays
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                name: tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[array.tobytes()])
                )
                for name, array in features.items()
            }
        )
    ).SerializeToString(deterministic=True)


def finish(
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
    trained_on: dict[str, Any] | None,
    counts: dict[str, int],
    written: dict[int, WrittenShard],
) -> None:
    """Writes vocabulary and manifest, with which the corpus is complete.

    Args:
      config: what `corpus.recipe` lists and where the shards are.
      tokenizer: what the documents were encoded with.
      trained_on: how much text the vocabulary was trained on; None if it was given.
      counts: of documents: `encoding.COUNTS`; and by other names of what reading and
        cleaning changed or dropped.
      written: by number, shards without a document may be missing.

    Raises:
      ConfigError: when the documents give too little to draw pairs from.
    """
    written = dict(sorted(written.items()))
    held_out = encoding.validation_shard(config.data)
    cleaning_counts = {n: counts[n] for n in sorted(counts.keys() - encoding.COUNTS)}
    counts = {name: counts.get(name, 0) for name in encoding.COUNTS} | {
        "repeated": sum(shard.num_repeated for shard in written.values()),
        "copies": sum(shard.num_copies for shard in written.values()),
    }
    _check_enough(config, written, counts)
    splits: dict[str, list[corpus.Shard]] = {split: [] for split in corpus.SPLITS}
    rows: dict[str, list[row_counts.Counts]] = {split: [] for split in corpus.SPLITS}
    for number, result in written.items():
        if result.shard is not None:
            split = "validation" if number == held_out else "train"
            splits[split].append(result.shard)
            rows[split].append(result.counts)
    manifest = {
        "format_version": corpus.FORMAT_VERSION,
        "sha256": "",  # of all else, below
        "recipe": corpus.recipe(config),
        "tokenizer_sha256": tokenizer.digest,
        "tokenizer_trained_on": trained_on,
        "documents": counts,
        "cleaning": cleaning_counts,
        "padding_efficiency": row_counts.padding_efficiency(
            rows["train"], config.data.short_seq_prob
        ),
        "splits": {
            split: corpus.to_columns(shards, rows[split])
            for split, shards in splits.items()
        },
    }
    directory = config.data.corpus_dir
    tokenizer.save(directory)
    manifest["sha256"] = corpus.manifest_digest(manifest)
    text = corpus.manifest_text(manifest) + "\n"
    storage.write(os.path.join(directory, corpus.MANIFEST), text.encode())


def _check_enough(
    config: ExperimentConfig,
    written: dict[int, WrittenShard],
    counts: dict[str, int],
) -> None:
    """Raises ConfigError when the documents do not allow what rows are made of."""
    sources = ", ".join(config.data.sources)
    kept = counts["read"] - counts["empty"]
    if kept == 0:
        raise ConfigError(
            f"config.data.sources ({sources}) gave {counts['read']} documents, none"
            " with text in it"
        )
    num_shards = config.data.num_shards
    train = [written[i] for i in range(num_shards) if i in written]
    sizes = [result.shard.num_documents for result in train if result.shard]
    num_train = sum(sizes) - sum(result.num_copies for result in train)
    if config.data.next_sentence:
        _check_pairs(sources, kept, counts["of_one_sentence"], num_train)
    needed = 2 if config.data.next_sentence else 1
    poor = num_shards - sum(size >= needed for size in sizes)
    if poor:
        reason = (
            f"fewer than 2 of the {num_train} training documents, and a random next"
            " sentence comes from the same shard"
            if config.data.next_sentence
            else f"none of the {num_train} training documents"
        )
        raise ConfigError(
            f"config.data.num_shards={num_shards} leaves {poor} shard(s) with {reason};"
            " set config.data.num_shards=1 and config.data.num_streams=1"
        )
    fraction = config.data.validation_fraction
    held_out = written.get(encoding.validation_shard(config.data))
    if fraction and (held_out is None or held_out.shard is None):
        raise ConfigError(
            f"config.data.validation_fraction={fraction} held out none of {kept}"
            " documents; raise it, for example to"
            f" {min(0.5, max(2 * fraction, 5 / kept)):.2g}, or set it to 0 for no"
            " held-out evaluation"
        )


def _check_pairs(sources: str, kept: int, of_one_sentence: int, num_train: int) -> None:
    """Raises ConfigError when most sentences have no next one, or none a random one."""
    # google-research/bert#125: a blank line after every sentence makes of each a
    # document, and then every next sentence is a random one.
    if of_one_sentence > 0.9 * kept:
        raise ConfigError(
            f"config.data.sources ({sources}) gave {kept} document(s),"
            f" {of_one_sentence} of one sentence, so there is no next sentence to"
            " predict; is there a blank line between all lines? Blank lines separate"
            " documents; if each file is one, write files:GLOB"
        )
    if num_train < 2:
        raise ConfigError(
            f"config.data.sources ({sources}) gave {num_train} training document(s); a"
            " random next sentence comes from another document, so at least 2 are"
            " needed: separate documents by blank lines or headings, give each its own"
            " file and write files:GLOB, or set config.data.next_sentence=False"
        )
