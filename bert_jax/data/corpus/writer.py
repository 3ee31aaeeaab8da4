"""Writes shards of encoded documents and the manifest, which corpus.py reads.

A shard depends only on its own documents, so shards can be written in any order by any
process. The manifest is written last.

Shapes: N document, S sentence.
"""

import collections
import dataclasses
import hashlib
import json
import math
import os
from typing import Any

import numpy as np

from bert_jax import storage
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pairs
from bert_jax.data.corpus import (
    corpus,
    encoding,
    keyed,
    row_counts,
    shard_file,
    sorted_runs,
)
from bert_jax.data.sources.kind import Source
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.storage import lease

# The number of tokens after which a record ends, with the document that reaches it.
BLOCK_TOKENS = 2**16
# With this mean number of documents, one shard in ten million has fewer than 2.
DOCUMENTS_PER_SHARD = 20


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    # Entry for the manifest; None if there were no documents, hence no file.
    shard: corpus.Shard | None
    counts: row_counts.Counts  # [] if there is no shard
    num_repeated: int  # repeated documents, which were dropped
    num_copies: int  # further copies, due to source weights
    settings: str = ""  # digest of those of the stage, for a prepared corpus

    def write(self, path: str) -> None:
        text = json.dumps(dataclasses.asdict(self)).encode()
        storage.write(path, b"\n".join([text, _digest(text)]))


def read_written(path: str) -> WrittenShard:
    """Reads what `WrittenShard.write` wrote; CorruptError if the file is another."""
    text, _, digest = storage.read(path).rpartition(b"\n")
    if digest != _digest(text):
        raise CorruptError(
            f"{path} is corrupt; remove {os.path.dirname(path)}, and rerun this command"
        )
    values = json.loads(text)
    shard = values.pop("shard")
    return WrittenShard(shard and corpus.Shard(**shard), **values)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


def write_planned(
    runs: list[sorted_runs.RunFile], settings: str, task: tuple[str, np.ndarray, str]
) -> None:
    """Writes one shard from a piece of each run, then its result file.

    A task has the path of the shard; the start and the end of the piece of each run,
    int64[R, 2, 4], see `sorted_runs.positions`; and the path of the result file, which
    marks the shard as finished. `settings` is that of `WrittenShard`.
    """
    path, bounds_R24, result = task
    read = sorted_runs.RunFile.read
    pieces = storage.in_threads(read, runs, bounds_R24[:, 0], bounds_R24[:, 1])
    written = write_shard(path, pieces)
    dataclasses.replace(written, settings=settings).write(result)


def write_shard(path: str, pieces: list[keyed.Documents]) -> WrittenShard:
    """Writes one shard, with its documents ordered by key and without repeats.

    The file depends on the documents only, not on their distribution over pieces.
    """
    everything = keyed.concatenate(pieces)
    order, num_repeated = keyed.distinct(everything.records)
    if not len(order):
        return WrittenShard(None, [], 0, 0)
    blocks = list(keyed.blocks(everything.records, order, BLOCK_TOKENS))
    size_and_digest = shard_file.write(path, everything, blocks)
    sentences = keyed.ranges(everything.records["num_sentences"], order)
    return describe(
        os.path.basename(path),
        everything.records[order],
        everything.sentence_lengths[sentences],
        num_repeated,
        *size_and_digest,
    )


def describe(
    file: str,
    records_N: np.ndarray,
    sentence_lengths_S: np.ndarray,
    num_repeated: int,
    num_bytes: int,
    sha256: str,
) -> WrittenShard:
    """Returns the result of writing a shard that has documents.

    num_bytes and sha256 are those of the file or, if the shard is streamed, of the
    token ids and `streamed.digest`.
    """
    documents = pairs.Documents.from_lengths(
        sentence_lengths_S, records_N["num_sentences"]
    )
    shard = corpus.Shard(
        file=file,
        num_documents=len(records_N),
        num_sentences=len(sentence_lengths_S),
        num_tokens=int(documents.token_offsets[-1]),
        num_bytes=num_bytes,
        sha256=sha256,
    )
    num_copies = int(np.count_nonzero(records_N["copy"]))
    return WrittenShard(shard, row_counts.count(documents), num_repeated, num_copies)


def check_size(path: str, num_bytes: int) -> None:
    if num_bytes > keyed.MAX_SHARD_BYTES:
        factor = num_bytes / keyed.MAX_SHARD_BYTES
        remedy = (
            "lower config.data.validation_fraction"
            if os.path.basename(path).startswith("validation")
            else f"multiply config.data.num_shards by at least {math.ceil(factor)}"
        )
        raise ConfigError(
            f"{path} would contain {num_bytes / 2**20:,.0f} MB of token ids, more than"
            f" {keyed.MAX_SHARD_BYTES / 2**20:,.0f} MB, and readers keep a whole"
            f" shard in memory; {remedy}"
        )


def finish(
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
    trained_on: dict[str, Any] | None,
    counts: collections.Counter[str],
    written: dict[str, WrittenShard],
    inputs: tuple[Source, ...],
    index: dict[str, Any] | None = None,
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
    # A name with more digits belongs to a later shard of the split.
    in_order = sorted(written, key=lambda name: (len(name), name))
    splits = {}
    for split in corpus.SPLITS:
        of_split = [written[name] for name in in_order if name.startswith(split)]
        splits[split] = corpus.to_columns(
            [x.shard for x in of_split if x.shard],
            [x.counts for x in of_split if x.shard],
        )
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
        "splits": splits,
    }
    if index is not None:
        manifest["stream"] = index
    directory = config.data.corpus_dir
    tokenizer.save(directory)
    if commits := {x.kind.spec: x.commit for x in inputs if x.commit}:
        manifest["hub_commits"] = commits
    manifest["sha256"] = corpus.manifest_digest(manifest)
    text = corpus.manifest_text(manifest) + "\n"
    lease.confirm_all()
    storage.write(os.path.join(directory, corpus.MANIFEST), text.encode())


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
    data, specs = config.data, ", ".join(config.data.sources)
    kept = counts["read"] - counts["empty"]
    train = [sizes[name] for name in sizes if name.startswith("train")]
    num_train = sum(num_documents - num_copies for num_documents, num_copies in train)
    needed, reason = 1, ""
    if data.next_sentence:
        needed = 2
        reason = ", because a random next sentence comes from another document"
    poor = data.num_shards - sum(size >= needed for size, _ in train)
    held_out = sum(sizes[n][0] for n in sizes if n.startswith("validation"))
    # google-research/bert#125: if a blank line follows every sentence, each one is a
    # document, and every next sentence is a random one.
    if data.next_sentence and counts["of_one_sentence"] > 0.9 * kept:
        raise ConfigError(
            f"config.data.sources ({specs}) contain {kept} document(s),"
            f" {counts['of_one_sentence']} of one sentence, so there is no next"
            " sentence to predict; blank lines separate documents: remove those between"
            " the sentences of a document, write files:GLOB if each file is a document,"
            " or set config.data.next_sentence=False"
        )
    if num_train < needed:
        raise ConfigError(
            f"config.data.sources ({specs}) contain {num_train} training document(s)"
            f" without repeats, but at least {needed} are needed{reason}; separate"
            " documents by blank lines or headings, or put each into its own file and"
            " write files:GLOB"
            f"{', or set config.data.next_sentence=False' if reason else ''}"
        )
    if poor:
        most = 1 << (max(1, num_train // DOCUMENTS_PER_SHARD).bit_length() - 1)
        most = min(most, data.num_shards // 2)  # streamed documents are not spread
        raise ConfigError(
            f"config.data.num_shards={data.num_shards} leaves {poor} shard(s) with"
            f" fewer than {needed} of the {num_train} training document(s){reason}; set"
            f" config.data.num_shards={most} and config.data.num_streams="
            f"{math.gcd(most, data.num_streams)}"
        )
    if data.validation_fraction and not held_out:
        more = min(0.5, max(2 * data.validation_fraction, 5 / num_train))
        raised = f"raise it, for example to {more:.2g}, or " if num_train > 1 else ""
        raise ConfigError(
            f"config.data.validation_fraction={data.validation_fraction} holds out none"
            f" of {num_train} documents; {raised}set it to 0 to train without held-out"
            " evaluation"
        )
