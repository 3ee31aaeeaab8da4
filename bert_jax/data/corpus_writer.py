"""Documents -> the token corpus on disk, in the format that corpus.py reads."""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from bert_jax.config import ConfigError, ExperimentConfig
from bert_jax.data import corpus, packing, pairs, tokenizers

# Tokens of a shard that are held back until they make a record.
BLOCK_TOKENS = 2**16
# Documents tokenised in one call.
BATCH_DOCUMENTS = 256
# Row lengths, and pairs in a row, for which the manifest says how many rows one pass
# over a shard makes.
REFERENCE_LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
REFERENCE_ROWS = (1, 2, 3, 4, 8, 32)


def write(
    config: ExperimentConfig,
    tokenizer: tokenizers.WordPiece,
    documents: Iterable[list[str]],
    on_progress: Callable[[int, int], None],
) -> None:
    """Tokenises documents into config.data.corpus_dir.

    Documents go to a split and a shard by a digest of their text, so equal documents
    stay together and held-out text is never trained on.

    Args:
      config: what `corpus.recipe` lists and where to write.
      tokenizer: text -> ids.
      documents: each a list of sentences.
      on_progress: called with the documents and text bytes read so far.

    Raises:
      ConfigError: when the documents give too little to draw pairs from.
    """
    directory = config.data.corpus_dir
    is_new = not tf.io.gfile.exists(directory)
    tf.io.gfile.makedirs(directory)
    dtype = np.uint16 if len(tokenizer.vocab) <= 2**16 else np.uint32
    num_shards = {"train": config.data.num_shards, "validation": 1}
    writers = {
        (split, i): _ShardWriter(
            os.path.join(directory, f"{split}-{i:05d}-of-{num:05d}"), dtype
        )
        for split, num in num_shards.items()
        for i in range(num)
    }
    try:
        counts = _tokenize(config, tokenizer, documents, writers, on_progress)
        _check_enough(config, writers, counts)
        splits: dict[str, list[corpus.Shard]] = {"train": [], "validation": []}
        for (split, _), writer in writers.items():
            if writer.num_documents:
                splits[split].append(writer.close())
    except BaseException:
        for writer in writers.values():
            writer.discard()
        if is_new and not tf.io.gfile.listdir(directory):
            tf.io.gfile.rmtree(directory)
        raise
    manifest = {
        "format_version": corpus.FORMAT_VERSION,
        "recipe": corpus.recipe(config),
        "tokenizer_sha256": tokenizer.digest,
        "documents": counts,
        "padding_efficiency": _padding_efficiency(
            splits["train"], config.data.short_seq_prob
        ),
        "splits": {
            split: [dataclasses.asdict(shard) for shard in shards]
            for split, shards in splits.items()
        },
    }
    _write_text(
        os.path.join(directory, corpus.VOCAB), "\n".join(tokenizer.vocab) + "\n"
    )
    _write_text(
        os.path.join(directory, corpus.MANIFEST), json.dumps(manifest, indent=2) + "\n"
    )


def _tokenize(
    config: ExperimentConfig,
    tokenizer: tokenizers.WordPiece,
    documents: Iterable[list[str]],
    writers: dict[tuple[str, int], "_ShardWriter"],
    on_progress: Callable[[int, int], None],
) -> dict[str, int]:
    """Deals every document to its writer and returns counts of documents."""
    encoder = tokenizer.build()
    num_read = num_bytes = num_empty = 0
    for batch in _batches(documents, BATCH_DOCUMENTS):
        texts = ["\n".join(document) for document in batch]
        encodings = iter(
            encoder.encode_batch_fast([s for document in batch for s in document])
        )
        for document, text in zip(batch, texts, strict=True):
            encoded = [next(encodings).ids for _ in document]
            ids = [sentence for sentence in encoded if sentence]
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            number = int.from_bytes(digest, "little")
            if not ids:
                num_empty += 1
            elif number < config.data.validation_fraction * 2**64:
                writers["validation", 0].add(ids)
            else:
                writers["train", number % config.data.num_shards].add(ids)
        num_read += len(batch)
        num_bytes += sum(len(text.encode()) for text in texts)
        on_progress(num_read, num_bytes)
    return {"read": num_read, "empty": num_empty}


def _batches(documents: Iterable[list[str]], size: int) -> Iterator[list[list[str]]]:
    batch = []
    for document in documents:
        batch.append(document)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _check_enough(
    config: ExperimentConfig,
    writers: dict[tuple[str, int], "_ShardWriter"],
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
    train = [w for (split, _), w in writers.items() if split == "train"]
    num_train = sum(writer.num_documents for writer in train)
    if config.data.next_sentence:
        _check_pairs(config, writers, kept, num_train)
    needed = 2 if config.data.next_sentence else 1
    poor = sum(writer.num_documents < needed for writer in train)
    if poor:
        reason = (
            "fewer than 2 of the {} training documents, and a random next sentence"
            " comes from the same shard"
            if config.data.next_sentence
            else "none of the {} training documents"
        )
        raise ConfigError(
            f"config.data.num_shards={config.data.num_shards} leaves {poor} shard(s)"
            f" with {reason.format(num_train)}; set config.data.num_shards=1"
            " and config.data.num_streams=1"
        )
    fraction = config.data.validation_fraction
    if fraction and writers["validation", 0].num_documents == 0:
        raise ConfigError(
            f"config.data.validation_fraction={fraction} held out none of {kept}"
            " documents; raise it, for example to"
            f" {min(0.5, max(2 * fraction, 5 / kept)):.2g}, or set it to 0 for no"
            " held-out evaluation"
        )


def _check_pairs(
    config: ExperimentConfig,
    writers: dict[tuple[str, int], "_ShardWriter"],
    kept: int,
    num_train: int,
) -> None:
    """Raises ConfigError when no sentence has a next one, or none a random one."""
    sources = ", ".join(config.data.sources)
    if all(writer.max_sentences < 2 for writer in writers.values()):
        raise ConfigError(
            f"config.data.sources ({sources}) gave {kept} document(s), none with two"
            " sentences, so there is no next sentence to predict; is there a blank"
            " line between all lines? Documents are what blank lines separate"
        )
    if num_train < 2:
        raise ConfigError(
            f"config.data.sources ({sources}) gave {num_train} training document(s); a"
            " random next sentence comes from another document, so at least 2 are"
            " needed: separate documents by blank lines or headings, or set"
            " config.data.next_sentence=False"
        )


class _ShardWriter:
    """Collects tokenised documents and writes them a block a record."""

    def __init__(self, path: str, dtype: type):
        self.path = path
        self.dtype = dtype
        self.num_documents = 0
        self.max_sentences = 0
        self._tmp = path + ".tmp"
        self._file: tf.io.TFRecordWriter | None = None
        self._ids: list[np.ndarray] = []
        self._sentence_lengths: list[int] = []
        self._document_lengths: list[int] = []
        self._num_buffered = 0

    def add(self, sentences: list[list[int]]) -> None:
        self.num_documents += 1
        self.max_sentences = max(self.max_sentences, len(sentences))
        lengths = [len(sentence) for sentence in sentences]
        ids = itertools.chain.from_iterable(sentences)
        self._ids.append(np.fromiter(ids, self.dtype, sum(lengths)))
        self._sentence_lengths += lengths
        self._document_lengths.append(len(sentences))
        self._num_buffered += sum(lengths)
        if self._num_buffered >= BLOCK_TOKENS:
            self._flush()

    def _flush(self) -> None:
        if not self._document_lengths:
            return
        if self._file is None:
            self._file = tf.io.TFRecordWriter(self._tmp)
        arrays = {
            "token_ids": np.concatenate(self._ids),
            "sentence_lengths": np.array(self._sentence_lengths, np.uint32),
            "document_lengths": np.array(self._document_lengths, np.uint32),
        }
        self._file.write(_to_record(arrays))
        self._ids, self._sentence_lengths = [], []
        self._document_lengths, self._num_buffered = [], 0

    def close(self) -> corpus.Shard:
        """Finishes the file under its own name and returns its manifest entry."""
        self._flush()
        assert self._file is not None
        self._file.close()
        tokens, sentence_lengths, document_lengths = corpus.read_shard(self._tmp)
        documents = pairs.Documents.from_lengths(sentence_lengths, document_lengths)
        passes = {
            name: {
                str(length): _reference_passes(documents, next_sentence, length)
                for length in REFERENCE_LENGTHS
            }
            for name, next_sentence in (
                ("next_sentence", True),
                ("masked_lm_only", False),
            )
        }
        with tf.io.gfile.GFile(self._tmp, "rb") as file:
            sha256 = hashlib.sha256(file.read()).hexdigest()
        tf.io.gfile.rename(self._tmp, self.path, overwrite=True)
        return corpus.Shard(
            file=os.path.basename(self.path),
            num_documents=len(document_lengths),
            num_sentences=len(sentence_lengths),
            num_tokens=len(tokens),
            passes=passes,
            sha256=sha256,
        )

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
        if tf.io.gfile.exists(self._tmp):
            tf.io.gfile.remove(self._tmp)


def _reference_passes(
    documents: pairs.Documents, next_sentence: bool, length: int
) -> dict[str, Any]:
    """Counts what two passes give at a row length.

    Returns:
      "tokens" and, by pairs in a row, "rows": each when no document aims short and when
      every document does; and "spread", the sum over documents of the squared
      difference in pairs. From these follow the mean and the variance of a pass in
      which each document aims short with some probability.
    """
    draw = pairs.draw_pairs if next_sentence else pairs.draw_segments
    first_tokens = documents.token_offsets[documents.sentence_offsets]
    per_document, tokens = [], []
    rows: dict[str, list[int]] = {str(k): [] for k in REFERENCE_ROWS}
    for short_seq_prob in (0.0, 1.0):
        drawn = draw(documents, length, short_seq_prob, pairs.CounterRandom(length))
        document = np.searchsorted(first_tokens, drawn.a_start, side="right") - 1
        per_document.append(np.bincount(document, minlength=len(first_tokens) - 1))
        tokens.append(int(drawn.lengths.sum()))
        for k, counts in rows.items():
            counts.append(packing.num_rows(drawn.lengths, length, int(k)))
    full, short = per_document
    return {
        "tokens": tokens,
        "rows": rows,
        "spread": int(np.square(short - full).sum()),
    }


def _padding_efficiency(
    shards: list[corpus.Shard], short_seq_prob: float
) -> dict[str, Any]:
    """Returns the share of real tokens by objective, row length and pairs in a row."""
    result: dict[str, Any] = {}
    weights = np.array([1.0 - short_seq_prob, short_seq_prob])
    for name, by_length in shards[0].passes.items():
        for length, found in by_length.items():
            every = [shard.passes[name][length] for shard in shards]
            tokens = weights @ np.sum([found["tokens"] for found in every], axis=0)
            result.setdefault(name, {})[length] = {
                k: round(
                    tokens
                    / (weights @ np.sum([found["rows"][k] for found in every], axis=0))
                    / int(length),
                    4,
                )
                for k in found["rows"]
            }
    return result


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


def _write_text(path: str, text: str) -> None:
    tmp = path + ".tmp"
    try:
        with tf.io.gfile.GFile(tmp, "w") as file:
            file.write(text)
        tf.io.gfile.rename(tmp, path, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(tmp):
            tf.io.gfile.remove(tmp)
        raise
