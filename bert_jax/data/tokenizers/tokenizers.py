"""The run's tokenizer: trained on its text, or read from a file or from a corpus.

config.tokenizer.kind says which. Each is a `base.Tokenizer`, so that nothing
after this file asks for the kind again.
"""

import os
import types
from collections.abc import Iterable
from pathlib import Path

from bert_jax import storage
from bert_jax.config import TokenizerConfig
from bert_jax.data.tokenizers import sentencepiece, wordpiece, wordpiece_training
from bert_jax.data.tokenizers.base import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    Encoder,
    Tokenizer,
)
from bert_jax.data.tokenizers.wordpiece import WordPiece
from bert_jax.errors import ConfigError, CorruptError

__all__ = [
    "CLS",
    "MASK",
    "PAD",
    "SEP",
    "SPECIAL_TOKENS",
    "UNK",
    "Encoder",
    "Tokenizer",
    "WordPiece",
    "load",
    "parse",
    "path_in",
    "read",
    "train",
    "training_bytes",
]


def train(documents: Iterable[list[str]], config: TokenizerConfig) -> Tokenizer:
    """Returns a tokenizer of config.vocab_size pieces made from documents.

    Args:
      documents: each a list of sentences; only as many are read as training takes.
      config: kind, vocab_size and lowercase.

    Raises:
      ConfigError: when that size does not fit the text.
    """
    return _trainer(config).train(documents, config)


def training_bytes(config: TokenizerConfig) -> int:
    """Returns how much text `train` reads at most."""
    return _trainer(config).TRAINING_BYTES


def load(config: TokenizerConfig) -> Tokenizer:
    """Reads config.vocab_file: vocab.txt of a WordPiece, .model of a SentencePiece.

    Raises:
      ConfigError: when the file is missing, is not what config.kind says, lacks what
        BERT needs, or has not vocab_size pieces.
    """
    path = Path(config.vocab_file).expanduser()
    if not path.is_file():
        raise ConfigError(f"config.tokenizer.vocab_file={str(path)!r} is not a file")
    storage.check_size(path)
    tokenizer = parse(path.read_bytes(), config, str(path))
    size = len(tokenizer.vocab)
    if size != config.vocab_size:
        raise ConfigError(
            f"config.tokenizer.vocab_size={config.vocab_size}, but {path} has"
            f" {size} tokens; set config.tokenizer.vocab_size={size}"
        )
    return tokenizer


def read(directory: str, config: TokenizerConfig) -> Tokenizer:
    """Reads back what `Tokenizer.save` wrote.

    Raises:
      ConfigError: when the file is missing or damaged.
    """
    path = path_in(directory, config)
    if not storage.exists(path):
        raise CorruptError(f"{path} is missing; prepare the corpus again")
    return parse(storage.read(path), config, path)


def parse(content: bytes, config: TokenizerConfig, path: str) -> Tokenizer:
    """Returns the tokenizer of a file's content; `path` names it in messages.

    Raises:
      ConfigError: when the content is not of config.kind, or lacks what BERT needs.
    """
    return _module(config).read(content, config, path)


def path_in(directory: str, config: TokenizerConfig) -> str:
    """Returns where a directory keeps a tokenizer of the config's kind."""
    if config.kind == "wordpiece":
        return os.path.join(directory, wordpiece.WordPiece.FILE)
    return os.path.join(directory, sentencepiece.SentencePiece.FILE)


def _module(config: TokenizerConfig) -> types.ModuleType:
    return wordpiece if config.kind == "wordpiece" else sentencepiece


def _trainer(config: TokenizerConfig) -> types.ModuleType:
    return wordpiece_training if config.kind == "wordpiece" else sentencepiece
