"""The corpus on disk: written once by `prepare`, then only read.

A corpus is a directory with the files

    manifest.json            settings, counts and checksums; written last
    vocab.txt                the tokenizer; sentencepiece.model for SentencePiece
    train-00000-of-00004     TFRecord files; each record is a block of whole documents
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
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax import storage
from bert_jax.config import DataConfig, ExperimentConfig, PhaseConfig
from bert_jax.data.batches import pairs
from bert_jax.data.corpus import row_counts, shard_file
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError

if TYPE_CHECKING:
    from bert_jax.data.corpus import streamed

FORMAT_VERSION = 5
MANIFEST = "manifest.json"
# The digests of a corpus up to this size are verified when it is opened, which takes at
# most a second. In a larger corpus only the checksums of the records are verified, when
# a shard is loaded.
DIGEST_BYTES = 2**28

SPLITS = ("train", "validation")
_SHARD_FILE = re.compile(r"(train|validation)-\d{5,}-of-\d{5,}")


@dataclasses.dataclass(frozen=True)
class Shard:
    """The manifest's entry for a shard."""

    file: str
    num_documents: int
    num_sentences: int
    num_tokens: int
    num_bytes: int
    sha256: str


_COLUMNS = tuple(field.name for field in dataclasses.fields(Shard))


@dataclasses.dataclass(frozen=True)
class Corpus:
    directory: str
    tokenizer: tokenizers.Tokenizer
    shards: dict[str, tuple[Shard, ...]]  # by split, "train" and "validation"
    sha256: str  # of the manifest, which contains the digests of all files
    word_segmented: bool  # whether ids have marks, see shard_file.py
    # The row counts of a split for the objective of the config, see
    # `row_counts.from_columns`. Not compared, because `sha256` covers them.
    rows: dict[str, np.ndarray] = dataclasses.field(compare=False)
    # Makes the training shards from their text; None if they are files.
    stream: "streamed.TextStream | None" = dataclasses.field(compare=False)

    def rows_per_epoch(
        self, split: str, data: DataConfig, phase: PhaseConfig
    ) -> list[int]:
        """Returns the mean number of rows of a pass over each shard of a split.

        It is that of every epoch, so that the position of any row can be computed
        without reading.
        """
        return row_counts.expected_rows(self.rows[split], data, phase)

    def load(self, shard: Shard) -> tuple[np.ndarray, pairs.Documents]:
        """Loads the token ids (uint16 or uint32) and documents of a shard."""
        tokens, documents = self.load_marked(shard)
        if self.word_segmented:
            tokens, _ = shard_file.split_marks(tokens)
        return tokens, documents

    def load_marked(self, shard: Shard) -> tuple[np.ndarray, pairs.Documents]:
        """Loads the stored token ids, including marks, and documents of a shard.

        Raises CorruptError if the file is missing, corrupt, or of another corpus.
        """
        path = os.path.join(self.directory, shard.file)
        if self.stream is not None and shard.file in self.stream.units:
            arrays = self.stream.read(shard.file, shard.sha256)
        else:
            arrays = shard_file.read(path)
        tokens, sentence_lengths, document_lengths = arrays
        sizes = (len(document_lengths), len(sentence_lengths), len(tokens))
        expected = (shard.num_documents, shard.num_sentences, shard.num_tokens)
        if sizes != expected:
            raise CorruptError(
                f"{path} contains {sizes} documents, sentences and tokens, but the"
                f" manifest lists {expected}; {_AGAIN}"
            )
        documents = pairs.Documents.from_lengths(sentence_lengths, document_lengths)
        return tokens, documents


def exists(directory: str) -> bool:
    return storage.exists(os.path.join(directory, MANIFEST))


def shard_files(directory: str) -> list[str]:
    """Returns the names of the files in a directory that are named like shards."""
    return sorted(filter(is_shard_file, storage.names(directory)))


def is_shard_file(name: str) -> bool:
    return _SHARD_FILE.fullmatch(name) is not None


def read(config: ExperimentConfig) -> Corpus:
    """Opens the corpus in config.data.corpus_dir and checks it against the config.

    Raises ConfigError if there is none, or one of another version or other settings;
    CorruptError, which names a file, if a file is missing, corrupt or superfluous.
    """
    directory = config.data.corpus_dir
    path = os.path.join(directory, MANIFEST)
    if not exists(directory):
        raise ConfigError(
            f"config.data.corpus_dir={directory!r} has no {MANIFEST} (current"
            f" directory: {os.getcwd()}); prepare it with python -m bert_jax.prepare"
        )
    manifest = _read_manifest(path)
    _check_recipe(manifest, config)
    shards, rows = {}, {}
    for split, columns in manifest["splits"].items():
        values = zip(*(columns[name] for name in _COLUMNS), strict=True)
        shards[split] = tuple(Shard(*each) for each in values)
        name = row_counts.objective(config.data)
        rows[split] = row_counts.from_columns(columns["rows"], name)
    on_disk = {"validation": shards["validation"]} if config.data.stream else shards
    _check_files(directory, on_disk)
    if config.data.next_sentence and any(s.num_documents < 2 for s in shards["train"]):
        raise ConfigError(
            f"config.data.next_sentence=True, but the corpus in {directory!r} has"
            " shards of one document, so a random next sentence would come from the"
            " same document; set config.data.next_sentence=False, for which the corpus"
            " was prepared"
        )
    tokenizer, stream = _read_tokenizer(config, manifest["tokenizer_sha256"]), None
    if config.data.stream:
        # It imports what reads and encodes text, which other corpora do not need.
        from bert_jax.data.corpus import streamed

        stream = streamed.TextStream(manifest, config.data, tokenizer)
    return Corpus(
        directory,
        tokenizer,
        shards,
        manifest["sha256"],
        config.data.word_segmented,
        rows,
        stream,
    )


def open_existing(config: ExperimentConfig) -> Corpus:
    """Opens a corpus as `read` does, and checks the files of streamed text."""
    corpus = read(config)
    if corpus.stream:
        corpus.stream.check_files()
    return corpus


def to_columns(
    shards: Sequence[Shard], counts: Sequence[row_counts.Counts]
) -> dict[str, Any]:
    """Returns a split's entry in the manifest: for each field, a list of all shards."""
    columns: dict[str, Any] = {
        name: [getattr(shard, name) for shard in shards] for name in _COLUMNS
    }
    return columns | {"rows": row_counts.to_columns(counts)}


def manifest_text(value: Any, indent: str = "") -> str:
    """Returns JSON with one key per line in the first three levels.

    A list takes one line, even if it has an item for each shard.
    """
    if not isinstance(value, dict) or not value or len(indent) > 4:
        return json.dumps(value, separators=(",", ":"))
    inner = indent + "  "
    items = (f"{inner}{json.dumps(k)}: {manifest_text(value[k], inner)}" for k in value)
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def sha256(directory: str) -> str:
    """Returns the digest of a corpus, which a checkpoint records."""
    return _read_manifest(os.path.join(directory, MANIFEST))["sha256"]


def _read_manifest(path: str) -> dict[str, Any]:
    """Reads a manifest and verifies its digest and its format version."""
    text = b"" if os.path.isdir(path) else storage.read(path)
    try:
        manifest = json.loads(text)
        version = manifest["format_version"]
        is_whole = manifest["sha256"] == manifest_digest(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptError(f"{path} is not a corpus manifest; {_AGAIN}") from None
    if not is_whole:
        raise CorruptError(
            f"{path} is corrupt: its sha256 does not match its content; {_AGAIN}"
        )
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"{path} has format_version {version!r}, but this code reads"
            f" {FORMAT_VERSION}; prepare the corpus again, or use the version of"
            " bert_jax that prepared it"
        )
    return manifest


def manifest_digest(manifest: dict[str, Any]) -> str:
    """Returns the SHA-256 of a manifest without its "sha256" entry."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_tokenizer(config: ExperimentConfig, digest: str) -> tokenizers.Tokenizer:
    directory = config.data.corpus_dir
    path = tokenizers.path_in(directory, config.tokenizer)
    try:
        tokenizer = tokenizers.read(directory, config.tokenizer)
    except ConfigError as error:  # the file was valid when the corpus was prepared
        raise CorruptError(f"{error} ({_AGAIN})") from None
    if tokenizer.digest != digest:
        raise CorruptError(
            f"{path} is not the vocabulary that the corpus was prepared with; {_AGAIN}"
        )
    given = config.tokenizer.vocab_file
    if given and tokenizers.load(config.tokenizer).digest != digest:
        raise ConfigError(
            f"config.tokenizer.vocab_file={given!r} is not the vocabulary of the corpus"
            f" in {directory!r}; {_REMEDY}"
        )
    return tokenizer


_AGAIN = shard_file.AGAIN
_REMEDY = "set config.data.corpus_dir to a new directory to prepare another corpus"


def recipe(config: ExperimentConfig) -> dict[str, Any]:
    """Returns the settings on which a corpus depends, by config key."""
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
        "tokenizer.trained": not (config.tokenizer.vocab_file or config.init_from),
    }


def _check_recipe(manifest: dict[str, Any], config: ExperimentConfig) -> None:
    is_streamed, made_with = "stream" in manifest, manifest["recipe"]
    if is_streamed != config.data.stream:
        found = "an index of streamed text" if is_streamed else "a prepared corpus"
        raise ConfigError(
            f"config.data.stream={config.data.stream}, but"
            f" config.data.corpus_dir={config.data.corpus_dir!r} contains {found}; set"
            f" config.data.stream={is_streamed}, or set config.data.corpus_dir to a new"
            " directory"
        )
    for key, value in recipe(config).items():
        if made_with.get(key) == value:
            continue
        was = f"{made_with.get(key)!r}"
        if key == "tokenizer.trained":
            if config.init_from:  # the vocabulary is compared with that of the model
                continue
            key, value = "tokenizer.vocab_file", config.tokenizer.vocab_file
            was = "'', a vocabulary trained on it" if value else "a vocabulary file"
        raise ConfigError(
            f"config.{key}={value!r}, but the corpus in {config.data.corpus_dir!r} was"
            f" prepared with {was}; use that value, or {_REMEDY}"
        )


def _check_files(directory: str, shards: dict[str, tuple[Shard, ...]]) -> None:
    expected = {shard.file: shard for split in shards.values() for shard in split}
    for name in sorted(expected.keys() ^ set(shard_files(directory))):
        problem = (
            f"is missing; {_AGAIN}"
            if name in expected
            else f"is not listed in {MANIFEST} of the same directory; remove it"
        )
        raise CorruptError(f"{os.path.join(directory, name)} {problem}")
    is_small = sum(shard.num_bytes for shard in expected.values()) <= DIGEST_BYTES
    storage.in_threads(
        lambda shard: shard_file.verify(
            os.path.join(directory, shard.file),
            shard.num_bytes,
            shard.sha256 if is_small else None,
        ),
        expected.values(),
    )
