"""The token corpus on disk: written once by `prepare`, read by everything else.

A directory with

    manifest.json            what it was made from, counts and checksums; written last
    vocab.txt                the tokenizer; a SentencePiece is sentencepiece.model
    train-00000-of-00004     TFRecord files: each record is a block of whole documents
    validation-00000-of-00001

A record is a tf.train.Example of raw little-endian arrays: `token_ids` (uint16 or
uint32, see `encoding.id_dtype`), `sentence_lengths` (uint32, tokens) and
`document_lengths` (uint32, sentences). TFRecord keeps a checksum of every record.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import numpy as np

from bert_jax import storage
from bert_jax.config import DataConfig, ExperimentConfig, PhaseConfig
from bert_jax.data.batches import pairs
from bert_jax.data.corpus import encoding, row_counts, shard_file
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError

FORMAT_VERSION = 5
MANIFEST = "manifest.json"
# A corpus up to this size is held against its digests when it is opened, which takes
# at most a second; of a larger one, a shard's records are checked as it is loaded.
DIGEST_BYTES = 2**28

SPLITS = ("train", "validation")
_SHARD_FILE = re.compile(r"(train|validation)-\d{5,}-of-\d{5,}")


@dataclasses.dataclass(frozen=True)
class Shard:
    file: str
    num_documents: int
    num_sentences: int
    num_tokens: int
    num_bytes: int
    sha256: str

    def __post_init__(self):
        """Raises TypeError when a manifest has values of another type."""
        for field in dataclasses.fields(self):
            if type(getattr(self, field.name)) is not field.type:
                raise TypeError(f"{field.name} is of another type")


_COLUMNS = tuple(field.name for field in dataclasses.fields(Shard))


@dataclasses.dataclass(frozen=True)
class Corpus:
    directory: str
    tokenizer: tokenizers.Tokenizer
    shards: dict[str, tuple[Shard, ...]]  # of "train" and "validation"
    sha256: str  # the manifest's, which holds the digests of all files
    word_segmented: bool  # whether ids carry marks, see `encoding.id_dtype`
    # By split, rows of the config's objective, see `row_counts.from_columns`. The
    # manifest's digest covers them.
    rows: dict[str, np.ndarray] = dataclasses.field(compare=False)

    def rows_per_epoch(
        self, split: str, data: DataConfig, phase: PhaseConfig
    ) -> list[int]:
        """Returns the number of rows that an epoch takes from each shard of a split.

        It is fixed, so that the position of any row is plain arithmetic: the mean
        number of rows of a pass over the shard's documents.
        """
        return row_counts.expected_rows(self.rows[split], data, phase)

    def load(self, shard: Shard) -> tuple[np.ndarray, pairs.Documents]:
        """Returns the shard's token ids (uint16 or uint32) and its documents.

        Raises:
          CorruptError: see `load_marked`.
        """
        tokens, documents = self.load_marked(shard)
        if self.word_segmented:
            tokens, _ = encoding.split_marks(tokens)
        return tokens, documents

    def load_marked(self, shard: Shard) -> tuple[np.ndarray, pairs.Documents]:
        """Returns the shard's token ids as they are kept, and its documents.

        Raises:
          CorruptError: when the file is missing or damaged, or holds not as much as
            the manifest says.
        """
        path = os.path.join(self.directory, shard.file)
        tokens, sentence_lengths, document_lengths = shard_file.read(path)
        found = (len(document_lengths), len(sentence_lengths), len(tokens))
        expected = (shard.num_documents, shard.num_sentences, shard.num_tokens)
        if found != expected:
            raise CorruptError(
                f"{path} holds {found} documents, sentences and tokens, its manifest"
                f" says {expected}; {_AGAIN}"
            )
        documents = pairs.Documents.from_lengths(sentence_lengths, document_lengths)
        return tokens, documents


def exists(directory: str) -> bool:
    return storage.exists(os.path.join(directory, MANIFEST))


def shard_files(directory: str) -> list[str]:
    """Returns the names of the files of a directory that are named as shards are."""
    if not storage.exists(directory):
        return []
    return sorted(filter(_SHARD_FILE.fullmatch, storage.names(directory)))


def read(config: ExperimentConfig) -> Corpus:
    """Opens the corpus at config.data.corpus_dir and holds it against the config.

    Raises:
      ConfigError: when there is none, its format is newer than this code, or it was
        made with other settings.
      CorruptError: when a file is missing, damaged or none of it; the message names
        the first.
    """
    directory = config.data.corpus_dir
    path = os.path.join(directory, MANIFEST)
    if not exists(directory):
        raise ConfigError(
            f"config.data.corpus_dir={directory!r} has no {MANIFEST} (looked from"
            f" {os.getcwd()}); make it with python -m bert_jax.prepare"
        )
    manifest = _read_manifest(path)
    try:
        made_with, digest = manifest["recipe"], manifest["tokenizer_sha256"]
        shards, rows = {}, {}
        for split in SPLITS:
            columns = manifest["splits"][split]
            shards[split] = _from_columns(columns)
            rows[split] = row_counts.from_columns(
                columns["rows"], row_counts.objective(config.data), len(shards[split])
            )
        if not isinstance(made_with, dict):
            raise TypeError("recipe")
    except (KeyError, TypeError, ValueError):
        raise CorruptError(_no_manifest(path)) from None
    _check_recipe(made_with, config)
    _check_files(directory, shards)
    if config.data.next_sentence and any(s.num_documents < 2 for s in shards["train"]):
        raise ConfigError(
            f"config.data.next_sentence=True, but the corpus in {directory!r} has"
            " shards of one document, where a random next sentence would be of the"
            " same; it was made for config.data.next_sentence=False"
        )
    tokenizer = _read_tokenizer(directory, config, digest)
    if config.tokenizer.vocab_file:
        given = tokenizers.load(config.tokenizer)
        if given.digest != tokenizer.digest:
            raise ConfigError(
                f"config.tokenizer.vocab_file={config.tokenizer.vocab_file!r} is not"
                f" the vocabulary of the corpus in {directory!r}; {_REMEDY}"
            )
    return Corpus(
        directory,
        tokenizer,
        shards,
        manifest["sha256"],
        config.data.word_segmented,
        rows,
    )


def to_columns(
    shards: Sequence[Shard], counts: Sequence[row_counts.Counts]
) -> dict[str, Any]:
    """Returns the manifest's entry of a split: a list with an item a shard, by field.

    Args:
      shards: of the split.
      counts: of the rows of each shard.
    """
    columns: dict[str, Any] = {
        name: [getattr(shard, name) for shard in shards] for name in _COLUMNS
    }
    return columns | {"rows": row_counts.to_columns(counts)}


def _from_columns(columns: dict[str, list[Any]]) -> tuple[Shard, ...]:
    """Returns the shards of `to_columns`.

    Raises:
      KeyError, TypeError, ValueError: when a column is missing, has values of another
        type, or is longer than another.
    """
    values = zip(*(columns[name] for name in _COLUMNS), strict=True)
    return tuple(Shard(*each) for each in values)


def manifest_text(value: Any, indent: str = "") -> str:
    """Returns JSON with a key a line in the first three levels.

    A list takes one line however long it is: those of the shards have an item each.
    """
    if not isinstance(value, dict) or not value or len(indent) > 4:
        return json.dumps(value, separators=(",", ":"))
    inner = indent + "  "
    items = (f"{inner}{json.dumps(k)}: {manifest_text(value[k], inner)}" for k in value)
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def _read_manifest(path: str) -> dict[str, Any]:
    """Returns a manifest that is what was written, and of this format."""
    try:
        manifest = json.loads(storage.read(path))
        version = manifest["format_version"]
        is_whole = manifest.get("sha256") == manifest_digest(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptError(_no_manifest(path)) from None
    except IsADirectoryError:
        raise ConfigError(_no_manifest(path)) from None
    # Before version 4 manifests had no digest.
    if "sha256" in manifest and not is_whole:
        raise CorruptError(
            f"{path} was changed: its sha256 is not that of what it says; {_AGAIN}"
        )
    if version != FORMAT_VERSION or not is_whole:
        raise ConfigError(
            f"{path} has format_version {version!r}, this code reads {FORMAT_VERSION};"
            " prepare the corpus again, or use the version that made it"
        )
    return manifest


def manifest_digest(manifest: dict[str, Any]) -> str:
    """Returns the sha256 of all that a manifest says, but for itself."""
    said = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _no_manifest(path: str) -> str:
    return f"{path} is not a corpus manifest; {_AGAIN}"


def _read_tokenizer(
    directory: str, config: ExperimentConfig, digest: Any
) -> tokenizers.Tokenizer:
    """Returns the tokenizer that the corpus was made with.

    Raises:
      CorruptError: when its file is not what was written.
    """
    path = tokenizers.path_in(directory, config.tokenizer)
    try:
        tokenizer = tokenizers.read(directory, config.tokenizer)
    except ConfigError as error:  # which was none when the corpus was made
        raise CorruptError(f"{error} ({_AGAIN})") from None
    if tokenizer.digest != digest:
        raise CorruptError(
            f"{path} is not the vocabulary that the corpus was made with; {_AGAIN}"
        )
    return tokenizer


_AGAIN = shard_file.AGAIN
_REMEDY = "set config.data.corpus_dir to a new directory to prepare another corpus"


def recipe(config: ExperimentConfig) -> dict[str, Any]:
    """Returns the settings a corpus depends on, by config key."""
    return {
        "data.sources": list(config.data.sources),
        "data.source_weights": list(config.data.source_weights),
        "data.num_shards": config.data.num_shards,
        "data.validation_fraction": config.data.validation_fraction,
        "data.invalid_utf8": config.data.invalid_utf8,
        "data.max_line_bytes": config.data.max_line_bytes,
        "data.max_document_bytes": config.data.max_document_bytes,
        "data.word_segmented": config.data.word_segmented,
        "tokenizer.kind": config.tokenizer.kind,
        "tokenizer.vocab_size": config.tokenizer.vocab_size,
        "tokenizer.lowercase": config.tokenizer.lowercase,
        "tokenizer.trained": not config.tokenizer.vocab_file,
    }


def _check_recipe(made_with: dict[str, Any], config: ExperimentConfig) -> None:
    for key, value in recipe(config).items():
        if made_with.get(key) == value:
            continue
        if key == "tokenizer.trained":
            key = "tokenizer.vocab_file"
            value = config.tokenizer.vocab_file
            was = "a vocabulary file" if not value else "a vocabulary trained on it"
        else:
            was = f"{made_with.get(key)!r}"
        raise ConfigError(
            f"config.{key}={value!r}, but the corpus in {config.data.corpus_dir!r} was"
            f" made with {was}; {_REMEDY}"
        )


def _check_files(directory: str, shards: dict[str, tuple[Shard, ...]]) -> None:
    """Raises CorruptError unless the shards are those that the manifest tells of."""
    expected = {shard.file: shard for split in shards.values() for shard in split}
    names = shard_files(directory)
    for name in names:
        if name not in expected:
            raise CorruptError(
                f"{os.path.join(directory, name)} is not of the corpus that"
                f" {MANIFEST} beside it tells of; remove it"
            )
    for name in sorted(expected.keys() - set(names)):
        raise CorruptError(f"{os.path.join(directory, name)} is missing; {_AGAIN}")
    is_small = sum(shard.num_bytes for shard in expected.values()) <= DIGEST_BYTES
    with futures.ThreadPoolExecutor(16) as pool:  # of a bucket, each takes a while
        for problem in pool.map(
            lambda shard: shard_file.damage(
                os.path.join(directory, shard.file),
                shard.num_bytes,
                shard.sha256 if is_small else None,
            ),
            expected.values(),
        ):
            if problem:
                raise CorruptError(f"{problem}; {_AGAIN}")
