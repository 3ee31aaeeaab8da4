"""Opens a model's tokenizer, and maps a run's vocabulary to rows of its token tables.

Shapes: V token of the run's vocabulary, S token of the source's.
"""

import itertools
import re

import numpy as np

from bert_jax.config import ExperimentConfig, TokenizerConfig
from bert_jax.data.tokenizers import base, tokenizers, wordpiece
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop.files import Source


def tokenizer_of(
    source: Source, vocab_size: int, given: bool | None, *, has_flag: bool
) -> tokenizers.Tokenizer:
    """Builds the tokenizer of a model.

    Args:
      vocab_size: the number of rows of the model's table of tokens.
      given: whether the tokenizer lower-cases text, if the model does not record it.
      has_flag: whether the user can give it as --lowercase.
    """
    directory, path = source.directory, source.vocabulary_path
    if given is not None and source.lowercase not in (None, given):
        raise ConfigError(
            f"--lowercase={str(given).lower()}, but {directory} has"
            f" {str(source.lowercase).lower()}; remove the flag"
        )
    if source.tokenizer is None:
        raise ConfigError(f"{directory} has no tokenizer; copy its vocab.txt there")
    lowercase = source.lowercase if given is None else given
    if lowercase is None:
        flag = "add --lowercase=true or --lowercase=false, or " if has_flag else ""
        raise ConfigError(
            f"{directory} does not record whether its text was lower-cased; {flag}write"
            ' {"do_lower_case": true} or false into its tokenizer_config.json'
        )
    tokenizer = source.tokenizer(lowercase)
    base.check_special_tokens(tokenizer.vocab, str(path), base.TEXT_TOKENS)
    if len(tokenizer.vocab) > vocab_size:
        raise ConfigError(
            f"{path} has {len(tokenizer.vocab)} tokens, more than the {vocab_size} of"
            " config.json; download it again"
        )
    return tokenizer


def notes(
    source: Source, tokenizer: tokenizers.Tokenizer, vocab_size: int
) -> tuple[str, ...]:
    """Returns a line for each part of a model that is not used."""
    found = []
    # Those of the pretraining heads are expected: each model is read without some.
    is_expected = re.compile(r"cls\.|(.*\.)?pooler\.").match
    unused = [name for name in source.unused if not is_expected(name)]
    if unused:
        found.append(f"unused tensors: {some(unused)}")
    if len(tokenizer.vocab) < vocab_size:
        found.append(
            f"{source.vocabulary_path} has {len(tokenizer.vocab):,} tokens, and the"
            f" table of tokens {vocab_size:,} rows; the last ones are not used"
        )
    return tuple(found)


def check_rules(source: Source) -> None:
    """Raises ConfigError if a model has a tokenizer that no corpus can have."""
    if source.vocabulary is None and source.tokenizer is not None:
        raise ConfigError(
            f"config.init_from: the tokenizer of {source.vocabulary_path} has other"
            " rules than BERT's, for which a corpus cannot be prepared; start from"
            " another model"
        )


def match(
    source: Source, config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> tuple[list[np.ndarray] | None, list[str]]:
    """Returns, for each token of the run, the rows of the source to average.

    A token that the source lacks is initialized with the mean of the pieces into which
    the source's tokenizer splits it. Tokens such as [unused0] may be replaced.

    Returns:
      V arrays of ids, or None if all rows are used unchanged and in order; and a line
      for each kind of new or dropped row.
    """
    num_embeddings = source.shapes["bert.embeddings.word"][0]
    num_biases = source.shapes.get("decoder_bias", (num_embeddings,))[0]
    num_rows, most = sorted((num_embeddings, num_biases))  # one may be padded
    check_rules(source)
    if source.vocabulary is None:
        if {num_rows, most} != {len(tokenizer.vocab)}:
            raise ConfigError(
                f"config.tokenizer.vocab_size={len(tokenizer.vocab)}, but"
                f" {source.directory} has {most} word embeddings and no"
                f" {tokenizer.FILE} to match them; copy it there"
            )
        note = f"no {tokenizer.FILE} to compare the vocabulary with"
        return None, [note]
    if source.vocabulary_path.name != tokenizer.FILE:
        raise ConfigError(
            f"config.tokenizer.kind={config.tokenizer.kind!r}, but {source.directory}"
            f" has a {source.vocabulary_path.name}; use the model's vocabulary"
        )
    path = str(source.vocabulary_path)
    theirs = _parse(source.vocabulary, config.tokenizer, path)
    if num_rows < len(theirs.vocab):
        raise CorruptError(
            f"{path} has {len(theirs.vocab)} tokens, but {source.directory} has"
            f" {num_rows} rows for them; download both again"
        )
    if not _extends(tokenizer, theirs):
        raise ConfigError(
            f"{path} is neither the run's vocabulary nor the beginning of it:"
            f" {_first_difference(tokenizer, theirs)}; set config.tokenizer.vocab_file"
            " to it, or to a copy with lines added at the end, and prepare the corpus"
            " again"
        )
    notes = []
    if theirs.vocab != tokenizer.vocab:
        new = _new(tokenizer, theirs)
        names = [tokenizer.vocab[i] for i in new]
        notes.append(
            f"{len(new)} new token(s), each the mean of its pieces: {some(names)}"
        )
        if never := _never_found(tokenizer, names):
            notes.append(f"tokens that the tokenizer never produces: {some(never)}")
    if most > len(theirs.vocab):
        notes.append(f"dropped {most - len(theirs.vocab)} rows without a token")
    return (_extension(tokenizer, theirs) if notes else None), notes


def _parse(content: bytes, config: TokenizerConfig, path: str) -> tokenizers.Tokenizer:
    """Parses a model's vocabulary; unlike that of a run, it may lack [MASK]."""
    if config.kind == "wordpiece":
        vocab = wordpiece.tokens_in(content, path)
        return tokenizers.WordPiece(vocab, config.lowercase)
    return tokenizers.parse(content, config, path)


def _extends(tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer) -> bool:
    """Returns whether the tokens of the source have the same ids in the run."""
    if theirs.digest == tokenizer.digest:
        return True
    if not isinstance(tokenizer, tokenizers.WordPiece):
        return False
    pairs = zip(theirs.vocab, tokenizer.vocab, strict=False)
    return len(tokenizer.vocab) >= len(theirs.vocab) and all(
        was == now or not was or was.startswith("[unused") for was, now in pairs
    )


def _first_difference(
    tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer
) -> str:
    if tokenizer.lowercase != theirs.lowercase or theirs.vocab == tokenizer.vocab:
        return "the two split text differently"
    pairs = itertools.zip_longest(theirs.vocab, tokenizer.vocab, fillvalue="nothing")
    number, (was, now) = next(
        (number, pair) for number, pair in enumerate(pairs, 1) if pair[0] != pair[1]
    )
    return f"token {number} is {was!r} in the model and {now!r} in the run"


def _never_found(tokenizer: tokenizers.Tokenizer, tokens: list[str]) -> list[str]:
    """Returns the words that the tokenizer does not encode as one token."""
    words = [token for token in tokens if not token.startswith(("##", "[unused"))]
    found = tokenizer.encoder()(words)
    return [
        word
        for word, ids in zip(words, found, strict=True)
        if [tokenizer.vocab[i] for i in ids] != [word]
    ]


def _new(tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer) -> list[int]:
    """Returns the ids whose tokens the source lacks at the same id."""
    pairs = itertools.zip_longest(tokenizer.vocab, theirs.vocab)
    return [i for i, (now, was) in enumerate(pairs) if now != was]


def _extension(
    tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer
) -> list[np.ndarray]:
    rows = [np.array([i]) for i in range(len(tokenizer.vocab))]
    new = _new(tokenizer, theirs)
    if new:
        assert isinstance(theirs, tokenizers.WordPiece), "_extends has checked it"
        pieces = theirs.pieces_of([tokenizer.vocab[i] for i in new])
        for i, ids in zip(new, pieces, strict=True):
            rows[i] = ids
    return rows


def averaged(table: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """Returns float32[V, ...], means of the rows of a table [S, ...]."""
    # A single row is copied, because a sum would turn -0 into 0.
    return np.stack(
        [table[ids[0]] if len(ids) == 1 else table[ids].mean(axis=0) for ids in rows]
    )


def some(items: list[str]) -> str:
    """Returns the first three items, with control characters escaped."""
    shown = [item if item.isprintable() else repr(item) for item in items[:3]]
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return ", ".join(shown) + more
