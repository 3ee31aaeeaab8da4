"""The rows of a trained model's token tables that a run's vocabulary asks for.

Shapes: V token of the run's vocabulary, S of the source's.
"""

import itertools

import numpy as np

from bert_jax.config import ExperimentConfig
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, DamagedError
from bert_jax.interop.files import Source


def match(
    source: Source, config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> tuple[list[np.ndarray] | None, list[str]]:
    """Returns for each token of the run the source's rows that its own is the mean of.

    A token that the source lacks is the mean of the pieces that the source makes of it;
    [unused0] and the like may be replaced.

    Returns:
      V arrays of ids, or None where all rows are taken as they are, one by one; and a
      line each on what is new or left out.

    Raises:
      ConfigError: when a token of the source is another, or missing.
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
                f" {source.vocabulary_path.name} to tell which is which; bring it there"
            )
        note = f"no {source.vocabulary_path.name} to compare the vocabulary with"
        return None, [note]
    path = str(source.vocabulary_path)
    theirs = tokenizers.parse(source.vocabulary, config.tokenizer, path)
    if num_rows < len(theirs.vocab):
        raise DamagedError(
            f"{path} has {len(theirs.vocab)} tokens, but {source.directory} has"
            f" {num_rows} rows for them; fetch both again"
        )
    if not _extends(tokenizer, theirs):
        raise ConfigError(
            f"{path} is not the run's vocabulary, nor its beginning:"
            f" {_first_difference(tokenizer, theirs)}; use it as"
            " config.tokenizer.vocab_file, or that and lines more, and a corpus made"
            " with it"
        )
    notes = []
    if theirs.vocab != tokenizer.vocab:
        new = _new(tokenizer, theirs)
        names = [tokenizer.vocab[i] for i in new]
        notes.append(
            f"{len(new)} new token(s), each the mean of its pieces: {some(names)}"
        )
        if never := _never_found(tokenizer, names):
            notes.append(f"tokens that no text can contain: {some(never)}")
    if most > len(theirs.vocab):
        notes.append(f"{most - len(theirs.vocab)} rows of no token are left out")
    return (_extension(tokenizer, theirs) if notes else None), notes


def _extends(tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer) -> bool:
    """Returns whether the tokens of the source are where they were."""
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
        return "it splits text otherwise"
    pairs = itertools.zip_longest(theirs.vocab, tokenizer.vocab, fillvalue="nothing")
    number, (was, now) = next(
        (number, pair) for number, pair in enumerate(pairs, 1) if pair[0] != pair[1]
    )
    return f"token {number} is {was!r} there and {now!r} here"


def _never_found(tokenizer: tokenizers.Tokenizer, tokens: list[str]) -> list[str]:
    """Returns the words that the tokenizer does not give whole."""
    words = [token for token in tokens if not token.startswith(("##", "[unused"))]
    found = tokenizer.encoder()(words)
    return [
        word
        for word, ids in zip(words, found, strict=True)
        if [tokenizer.vocab[i] for i in ids] != [word]
    ]


def _new(tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer) -> list[int]:
    """Returns the ids of the tokens that the source lacks there."""
    pairs = itertools.zip_longest(tokenizer.vocab, theirs.vocab)
    return [i for i, (now, was) in enumerate(pairs) if now != was]


def _extension(
    tokenizer: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer
) -> list[np.ndarray]:
    rows = [np.array([i]) for i in range(len(tokenizer.vocab))]
    new = _new(tokenizer, theirs)
    if new:
        assert isinstance(theirs, tokenizers.WordPiece), "as _extends has seen"
        pieces = theirs.pieces_of([tokenizer.vocab[i] for i in new])
        for i, ids in zip(new, pieces, strict=True):
            rows[i] = ids
    return rows


def averaged(table: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """Returns float32[V, ...] of a table [S, ...]: the means of its rows."""
    # One row is taken as it is: a sum makes 0 of -0.
    return np.stack(
        [table[ids[0]] if len(ids) == 1 else table[ids].mean(axis=0) for ids in rows]
    )


def some(items: list[str]) -> str:
    """Returns the first few names; control characters of a file's are shown as such."""
    shown = [item if item.isprintable() else repr(item) for item in items[:3]]
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return ", ".join(shown) + more
