"""Loads and reads tokenizers of any config.tokenizer.kind.

Every kind is a `base.Tokenizer`, so callers do not depend on the kind.
"""

import os

from bert_jax import small_files, storage
from bert_jax.config import TokenizerConfig
from bert_jax.data.tokenizers import base, sentencepiece, wordpiece
from bert_jax.data.tokenizers.base import SPECIAL_TOKENS as SPECIAL_TOKENS
from bert_jax.data.tokenizers.base import Tokenizer as Tokenizer
from bert_jax.data.tokenizers.wordpiece import WordPiece as WordPiece
from bert_jax.errors import ConfigError, CorruptError

# A larger share of pieces with capitals or accents is not due to a few odd or added
# ones: the released cased vocabularies have 30% or more, the uncased ones none.
MAX_LOST_SHARE = 0.01


def load(config: TokenizerConfig, *, any_size: bool = False) -> Tokenizer:
    """Loads config.vocab_file, a WordPiece vocab.txt or a SentencePiece .model file."""
    path = config.vocab_file
    if not storage.exists(path) or os.path.isdir(path):
        raise ConfigError(
            f"config.tokenizer.vocab_file={path!r} is not a file; set it to a"
            " vocabulary file, or to '' to use that of config.init_from or train one"
        )
    small_files.check_size(path)
    tokenizer = parse(storage.read(path), config, path)
    size = len(tokenizer.vocab)
    if size != config.vocab_size and not any_size:
        raise ConfigError(
            f"config.tokenizer.vocab_size={config.vocab_size}, but {path} has {size}"
            f" tokens; set config.tokenizer.vocab_size={size}"
        )
    return tokenizer


def load_for_corpus(config: TokenizerConfig) -> Tokenizer:
    """Loads config.vocab_file, whose model and pieces must have config.lowercase."""
    tokenizer = load(config)
    if not isinstance(tokenizer, WordPiece):
        return tokenizer  # its model decides, and `load` has compared it
    path = config.vocab_file
    settings = os.path.join(os.path.dirname(path), "tokenizer_config.json")
    recorded = None
    if storage.exists(settings):
        recorded = small_files.read_json(settings).get("do_lower_case")
    if recorded in (True, False):
        if recorded != config.lowercase:
            raise ConfigError(
                f"config.tokenizer.lowercase={config.lowercase}, but {settings} has"
                f" do_lower_case={recorded}; set config.tokenizer.lowercase={recorded}"
            )
    elif config.lowercase:
        lost = tokenizer.pieces_lost_by_lowercase()
        has_capitals = any(piece != piece.lower() for piece in lost)
        kind = "capital letters" if has_capitals else "accents"
        remedy = "" if has_capitals else "lower-case the text yourself, and "
        if len(lost) > MAX_LOST_SHARE * len(tokenizer.vocab):
            raise ConfigError(
                f"config.tokenizer.lowercase=True, but {path} has {len(lost):,} pieces"
                f" with {kind}, for example {lost[0]!r}, which it removes from text;"
                f" {remedy}set config.tokenizer.lowercase=False"
            )
    return tokenizer


def read(directory: str, config: TokenizerConfig) -> Tokenizer:
    """Reads a tokenizer that `Tokenizer.save` wrote into a directory."""
    path = path_in(directory, config)
    if not storage.exists(path):
        raise CorruptError(f"{path} is missing; restore it")
    return parse(storage.read(path), config, path)


def parse(
    content: bytes, config: TokenizerConfig, path: str, *, may_lack_mask: bool = False
) -> Tokenizer:
    """Parses the content of a tokenizer file; `path` names it in error messages.

    The WordPiece vocabulary of a model, unlike that of a run, may lack [MASK].
    """
    if config.kind != "wordpiece":
        return sentencepiece.read(content, config, path)
    vocab = wordpiece.tokens_in(content, path)
    if not may_lack_mask:
        base.check_special_tokens(vocab, path, SPECIAL_TOKENS)
    return WordPiece(vocab, config.lowercase)


def path_in(directory: str, config: TokenizerConfig) -> str:
    is_wordpiece = config.kind == "wordpiece"
    kind = WordPiece if is_wordpiece else sentencepiece.SentencePiece
    return os.path.join(directory, kind.FILE)
