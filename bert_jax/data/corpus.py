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
import math
import os
import re
from collections.abc import Callable
from concurrent import futures
from typing import Any

import numpy as np

from bert_jax import storage
from bert_jax.config import (
    ConfigError,
    DamagedError,
    DataConfig,
    ExperimentConfig,
    PhaseConfig,
)
from bert_jax.data import encoding, pairs, shard_file, tokenizers

FORMAT_VERSION = 5
MANIFEST = "manifest.json"
# A corpus up to this size is held against its digests when it is opened, which takes
# at most a second; of a larger one, a shard's records are checked as it is loaded.
DIGEST_BYTES = 2**28

_SHARD_FILE = re.compile(r"(train|validation)-\d{5,}-of-\d{5,}")


@dataclasses.dataclass(frozen=True)
class Shard:
    file: str
    num_documents: int
    num_sentences: int
    num_tokens: int
    # By objective and row length: what a pass over the documents gives, see
    # `corpus_writer`.
    passes: dict[str, dict[str, dict[str, Any]]]
    num_bytes: int
    sha256: str

    def __post_init__(self):
        """Raises TypeError when a manifest has values of another type."""
        for field in dataclasses.fields(self):
            kind = dict if field.name == "passes" else field.type
            if type(getattr(self, field.name)) is not kind:
                raise TypeError(f"{field.name} is of another type")

    def rows_per_epoch(self, data: DataConfig, phase: PhaseConfig) -> int:
        """Returns how many rows an epoch takes from this shard.

        A pass over the documents makes a few more or fewer rows each time; a fixed
        number makes the position of any row plain arithmetic. It is the expected count
        and two standard deviations more, so that an epoch seldom leaves a pair out; it
        is filled up with rows taken twice, under other masks.
        """
        num_per_row = phase.max_sequences_per_row
        p = data.short_seq_prob

        def count(of: Callable[[dict[str, Any]], float]) -> float:
            passes = self.passes[objective(data)]
            return _interpolate(
                phase.sequence_length,
                {int(n): of(found) for n, found in passes.items()},
            )

        def rows(short: int, num_per_row: int) -> float:
            return count(
                lambda found: _interpolate(
                    num_per_row, {int(k): n[short] for k, n in found["rows"].items()}
                )
            )

        pairs_ = (1 - p) * rows(0, 1) + p * rows(1, 1)
        expected = (1 - p) * rows(0, num_per_row) + p * rows(1, num_per_row)
        # Which documents are short and how short, and about one coin a pair.
        variance = p * count(lambda found: found["spread"]) + pairs_
        # Rounded first: the last bits of exp and log differ between machines.
        deviation = math.sqrt(variance) * expected / pairs_
        return math.ceil(round(expected + 2 * deviation, 3))


def objective(data: DataConfig) -> str:
    """Returns the name under which a manifest counts what an epoch draws."""
    return "next_sentence" if data.next_sentence else "masked_lm_only"


def _interpolate(x: float, values: dict[int, float]) -> float:
    """Returns the value at x between known ones, along straight lines of logarithms."""
    xs = [math.log(known) for known in values]
    ys = [math.log(max(value, 1)) for value in values.values()]
    return math.exp(np.interp(math.log(x), xs, ys))


@dataclasses.dataclass(frozen=True)
class Corpus:
    directory: str
    tokenizer: tokenizers.Tokenizer
    shards: dict[str, tuple[Shard, ...]]  # of "train" and "validation"
    sha256: str  # the manifest's, which holds the digests of all files
    word_segmented: bool  # whether ids carry marks, see `encoding.id_dtype`

    def load(self, shard: Shard) -> tuple[np.ndarray, pairs.Documents]:
        """Returns the shard's token ids (uint16 or uint32) and its documents.

        Raises:
          DamagedError: see `load_marked`.
        """
        tokens, documents = self.load_marked(shard)
        if self.word_segmented:
            tokens, _ = encoding.split_marks(tokens)
        return tokens, documents

    def load_marked(self, shard: Shard) -> tuple[np.ndarray, pairs.Documents]:
        """Returns the shard's token ids as they are kept, and its documents.

        Raises:
          DamagedError: when the file is missing or damaged, or holds not as much as
            the manifest says.
        """
        path = os.path.join(self.directory, shard.file)
        tokens, sentence_lengths, document_lengths = shard_file.read(path)
        found = (len(document_lengths), len(sentence_lengths), len(tokens))
        expected = (shard.num_documents, shard.num_sentences, shard.num_tokens)
        if found != expected:
            raise DamagedError(
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
      DamagedError: when a file is missing, damaged or none of it; the message names
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
        shards = {
            split: tuple(Shard(**shard) for shard in manifest["splits"][split])
            for split in ("train", "validation")
        }
        if not isinstance(made_with, dict) or any(
            objective(config.data) not in shard.passes for shard in shards["train"]
        ):
            raise KeyError("recipe or passes")
    except (KeyError, TypeError):
        raise DamagedError(_no_manifest(path)) from None
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
    )


def _read_manifest(path: str) -> dict[str, Any]:
    """Returns a manifest that is what was written, and of this format."""
    try:
        manifest = json.loads(storage.read(path))
        version = manifest["format_version"]
        is_whole = manifest.get("sha256") == manifest_digest(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedError(_no_manifest(path)) from None
    except IsADirectoryError:
        raise ConfigError(_no_manifest(path)) from None
    # Before version 4 manifests had no digest.
    if "sha256" in manifest and not is_whole:
        raise DamagedError(
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
      DamagedError: when its file is not what was written.
    """
    path = tokenizers.path_in(directory, config.tokenizer)
    try:
        tokenizer = tokenizers.read(directory, config.tokenizer)
    except ConfigError as error:  # which was none when the corpus was made
        raise DamagedError(f"{error} ({_AGAIN})") from None
    if tokenizer.digest != digest:
        raise DamagedError(
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
    """Raises DamagedError unless the shards are those that the manifest tells of."""
    expected = {shard.file: shard for split in shards.values() for shard in split}
    names = shard_files(directory)
    for name in names:
        if name not in expected:
            raise DamagedError(
                f"{os.path.join(directory, name)} is not of the corpus that"
                f" {MANIFEST} beside it tells of; remove it"
            )
    for name in sorted(expected.keys() - set(names)):
        raise DamagedError(f"{os.path.join(directory, name)} is missing; {_AGAIN}")
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
                raise DamagedError(f"{problem}; {_AGAIN}")
