"""Maps a run's vocabulary to rows of a trained model's token tables.

Shapes: V token of the run's vocabulary, S token of the source's.
"""

import itertools

import numpy as np

from bert_jax.config import ExperimentConfig
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop.files import Source


def match(
    source: Source, config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> tuple[list[np.ndarray] | None, list[str]]:
    """Returns, for each token of the run, the rows of the source to average.

    A token that the source lacks is initialized with the mean of the pieces into which
    the source's tokenizer splits it. Tokens such as [unused0] may be replaced.

    Returns:
      V arrays of ids, or None if all rows are used unchanged and in order; and a line
      for each kind of new or dropped row.

    Raises:
      ConfigError: if a token of the source differs or is missing.
    """
    num_embeddings = source.shapes["bert.embeddings.word"][0]
    num_biases = source.shapes.get("decoder_bias", (num_embeddings,))[0]
    num_rows, most = sorted((num_embeddings, num_biases))  # one may be padded
    if source.vocabulary_path.name != tokenizer.FILE:
        raise ConfigError(
            f"config.tokenizer.kind={config.tokenizer.kind!r}, but {source.directory}"
            f" has a {source.vocabulary_path.name}; use the model's vocabulary"
        )
    if source.vocabulary is None:
        if {num_rows, most} != {len(tokenizer.vocab)}:
            raise ConfigError(
                f"config.tokenizer.vocab_size={len(tokenizer.vocab)}, but"
                f" {source.directory} has {most} word embeddings and no"
                f" {source.vocabulary_path.name} to match them; copy it there"
            )
        note = f"no {source.vocabulary_path.name} to compare the vocabulary with"
        return None, [note]
    path = str(source.vocabulary_path)
    theirs = tokenizers.parse(source.vocabulary, config.tokenizer, path)
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


def _extends(tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer) -> bool:
    """Returns whether the tokens of the source have the same ids in the run."""
    if theirs.digest == tokenizer.digest:
        return True
    if not isinstance(tokenizer, tokenizers.WordPiece):
        return False
    pairs = zip(theirs.vocab, tokenizer.vocab, strict=False)
    return len(tokenizer.vocab) >= len(theirs.vocab) and all(
        was == now or was.startswith("[unused") for was, now in pairs
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
