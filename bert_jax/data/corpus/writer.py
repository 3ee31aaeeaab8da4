"""Writes shards of encoded documents and the manifest, which corpus.py reads.

A shard depends only on its own documents, so shards can be written in any order by any
process. The manifest is written last.
"""

import collections
import dataclasses
import json
import math
import os
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from bert_jax import storage
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pairs
from bert_jax.data.corpus import (
    corpus,
    encoding,
    row_counts,
    segments,
    shard_file,
    sorted_runs,
    streamed,
)
from bert_jax.data.sources.kind import Source
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError
from bert_jax.lazy_tensorflow import tf
from bert_jax.storage import lease

# The number of tokens after which a record ends, with the document that reaches it.
BLOCK_TOKENS = 2**16
# With this mean number of documents, one shard in ten million has fewer than 2.
DOCUMENTS_PER_SHARD = 20


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    """The result of writing a shard."""

    # Entry for the manifest; None if there were no documents, hence no file.
    shard: corpus.Shard | None
    counts: row_counts.Counts  # [] if there is no shard
    num_repeated: int  # repeated documents, which were dropped
    num_copies: int  # further copies, due to source weights
    settings: str = ""  # digest of those of the stage, for a prepared corpus

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def read_written(path: str) -> WrittenShard:
    values = json.loads(storage.read(path))
    shard = values.pop("shard")
    return WrittenShard(shard and corpus.Shard(**shard), **values)


class ShardTask(NamedTuple):
    """A task for a worker: to write one shard from a piece of each run."""

    path: str
    # int64[R, 2, 4], start and end of the piece of each run, see
    # `sorted_runs.positions`.
    pieces: np.ndarray
    result: str  # path of the result file, which marks the shard as finished


class ShardWriter:
    """Writes shards from pieces of runs."""

    def __init__(self, runs: list[sorted_runs.RunFile], settings: str):
        self._runs, self._settings = runs, settings

    def __call__(self, task: ShardTask) -> None:
        """Writes a shard, then its result file."""
        with futures.ThreadPoolExecutor(storage.STAT_THREADS) as pool:
            pieces = list(
                pool.map(
                    sorted_runs.RunFile.read,
                    self._runs,
                    task.pieces[:, 0],
                    task.pieces[:, 1],
                )
            )
        written = write_shard(task.path, pieces)
        written = dataclasses.replace(written, settings=self._settings)
        storage.write(task.result, written.to_json().encode())


def write_shard(path: str, pieces: list[segments.Segment]) -> WrittenShard:
    """Writes one shard, with its documents ordered by key and without repeats.

    The file depends on the documents only, not on their distribution over pieces. No
    file is written if there are no documents.
    """
    everything = segments.concatenate(pieces)
    order, num_repeated = segments.distinct(everything.records)
    if not len(order):
        return WrittenShard(None, [], 0, 0)

    def fill(tmp: str) -> tuple[int, str]:
        with tf.io.TFRecordWriter(tmp) as file:
            for block in segments.blocks(everything.records, order, BLOCK_TOKENS):
                file.write(_to_record(segments.select(everything, block)))
        return shard_file.digest(tmp)

    num_bytes, sha256 = storage.write_with(path, fill)
    records = everything.records[order]
    sentences = segments.ranges(everything.records["num_sentences"], order)
    lengths = everything.sentence_lengths[sentences]
    file = os.path.basename(path)
    return describe(file, records, lengths, num_repeated, num_bytes, sha256)


def describe(
    file: str,
    records: np.ndarray,
    sentence_lengths: np.ndarray,
    num_repeated: int,
    num_bytes: int,
    sha256: str,
) -> WrittenShard:
    """Returns the result of writing a shard that has documents.

    num_bytes and sha256 are those of the file or, if the shard is streamed, of the
    token ids and `streamed.digest`.
    """
    documents = pairs.Documents.from_lengths(sentence_lengths, records["num_sentences"])
    shard = corpus.Shard(
        file=file,
        num_documents=len(records),
        num_sentences=len(sentence_lengths),
        num_tokens=int(documents.token_offsets[-1]),
        num_bytes=num_bytes,
        sha256=sha256,
    )
    num_copies = int(np.count_nonzero(records["copy"]))
    return WrittenShard(shard, row_counts.count(documents), num_repeated, num_copies)


def check_size(path: str, num_bytes: int) -> None:
    """Raises ConfigError if there are more token ids than a shard may have."""
    if num_bytes > segments.MAX_SHARD_BYTES:
        factor = num_bytes / segments.MAX_SHARD_BYTES
        remedy = (
            "lower config.data.validation_fraction"
            if os.path.basename(path).startswith("validation")
            else f"multiply config.data.num_shards by at least {factor:.1f}"
        )
        raise ConfigError(
            f"{path} would contain {num_bytes / 2**20:,.0f} MB of token ids, more than"
            f" {segments.MAX_SHARD_BYTES / 2**20:,.0f} MB, and readers keep a whole"
            f" shard in memory; {remedy}"
        )


def _to_record(block: segments.Segment) -> bytes:
    features = {
        "dtype": np.frombuffer(block.token_ids.dtype.name.encode(), np.uint8),
        "token_ids": block.token_ids,
        "sentence_lengths": block.sentence_lengths,
        "document_lengths": block.records["num_sentences"],
    }
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
    counts: collections.Counter[str],
    written: dict[str, WrittenShard],
    inputs: tuple[Source, ...],
    index: streamed.Index | None = None,
) -> None:
    """Writes the tokenizer and the manifest, which complete a corpus.

    Args:
      trained_on: amount of text, see `vocabulary.train`; None for a vocabulary file.
      counts: `encoding.COUNTS`, "repeated", and those of tokens, reading and cleaning.
      written: results by file name; shards without documents may be missing.
      inputs: the sources, whose commits on the Hugging Face Hub are recorded.
      index: files and units of the training shards, if these are streamed.
    """
    results = written.values()
    sizes = {
        name: (result.shard.num_documents if result.shard else 0, result.num_copies)
        for name, result in written.items()
    }
    check_enough(config, counts, sizes)
    manifest = {
        "format_version": corpus.FORMAT_VERSION,
        "sha256": "",  # set below, from all other entries
        "recipe": corpus.recipe(config),
        "tokenizer_sha256": tokenizer.digest,
        "tokenizer_trained_on": trained_on,
        "documents": {name: counts[name] for name in encoding.COUNTS}
        | {
            "repeated": counts["repeated"] + sum(x.num_repeated for x in results),
            "copies": sum(result.num_copies for result in results),
        },
        "cleaning": {
            name: counts[name]
            for name in sorted(counts.keys() - {*encoding.COUNTS, "repeated"})
            if encoding.TOKENS not in name
        },
        "unknown_share": encoding.unknown_shares(counts, len(config.data.sources)),
        "splits": {
            split: corpus.to_columns(
                [x.shard for x in of_split if x.shard], [x.counts for x in of_split]
            )
            for split, of_split in _by_split(written).items()
        },
    }
    if index is not None:
        manifest["stream"] = index.to_json()
    directory = config.data.corpus_dir
    tokenizer.save(directory)
    if commits := {x.kind.spec: x.commit for x in inputs if x.commit}:
        manifest["hub_commits"] = commits
    manifest["sha256"] = corpus.manifest_digest(manifest)
    text = corpus.manifest_text(manifest) + "\n"
    lease.confirm_all()
    storage.write(os.path.join(directory, corpus.MANIFEST), text.encode())


def _by_split(written: dict[str, WrittenShard]) -> dict[str, list[WrittenShard]]:
    """Returns the shards with documents of each split, in order."""
    found: dict[str, list[WrittenShard]] = {split: [] for split in corpus.SPLITS}
    # A name with more digits belongs to a later shard of the split.
    for name in sorted(written, key=lambda name: (len(name), name)):
        if written[name].shard is not None:
            found[_split(name)].append(written[name])
    return found


def _split(name: str) -> str:
    return name.partition("-")[0]


def check_enough(
    config: ExperimentConfig,
    counts: collections.Counter[str],
    sizes: dict[str, tuple[int, int]],
) -> None:
    """Raises ConfigError if there are too few documents to draw training rows from.

    Args:
      sizes: the numbers of documents, including further copies, and of further copies
        of each shard by file name; empty shards may be missing. If they include
        repeated documents, the check may pass with too few documents.
    """
    specs = ", ".join(config.data.sources)
    kept = counts["read"] - counts["empty"]
    num_shards = config.data.num_shards
    train = [size for name, size in sizes.items() if _split(name) == "train"]
    num_train = sum(num_documents - num_copies for num_documents, num_copies in train)
    if config.data.next_sentence:
        _check_pairs(specs, kept, counts["of_one_sentence"], num_train)
    needed = 2 if config.data.next_sentence else 1
    poor = num_shards - sum(num_documents >= needed for num_documents, _ in train)
    if poor:
        reason = (
            f"fewer than 2 of the {num_train} training documents, but a random next"
            " sentence comes from another document of the same shard"
            if config.data.next_sentence
            else f"none of the {num_train} training documents"
        )
        raise ConfigError(
            f"config.data.num_shards={num_shards} leaves {poor} shard(s) with {reason};"
            f" {_fewer_shards(config.data.num_streams, num_train)}"
        )
    fraction = config.data.validation_fraction
    if fraction and not any(sizes[n][0] for n in sizes if _split(n) == "validation"):
        raise ConfigError(
            f"config.data.validation_fraction={fraction} holds out none of {kept}"
            " documents; raise it, for example to"
            f" {min(0.5, max(2 * fraction, 5 / kept)):.2g}, or set it to 0 to train"
            " without held-out evaluation"
        )


def _fewer_shards(num_streams: int, num_train: int) -> str:
    num_shards = 1 << (max(1, num_train // DOCUMENTS_PER_SHARD).bit_length() - 1)
    return (
        f"set config.data.num_shards={num_shards} and"
        f" config.data.num_streams={math.gcd(num_shards, num_streams)}"
    )


def _check_pairs(specs: str, kept: int, of_one_sentence: int, num_train: int) -> None:
    # google-research/bert#125: if a blank line follows every sentence, each one is a
    # document, and every next sentence is a random one.
    if of_one_sentence > 0.9 * kept:
        raise ConfigError(
            f"config.data.sources ({specs}) contain {kept} document(s),"
            f" {of_one_sentence} of one sentence, so there is no next sentence to"
            " predict; blank lines separate documents: remove those between the"
            " sentences of a document, or write files:GLOB if each file is a document"
        )
    if num_train < 2:
        raise ConfigError(
            f"config.data.sources ({specs}) contain {num_train} training document(s),"
            " but a random next sentence comes from another document, so at least 2 are"
            " needed; separate documents by blank lines or headings, put each into its"
            " own file and write files:GLOB, or set config.data.next_sentence=False"
        )
