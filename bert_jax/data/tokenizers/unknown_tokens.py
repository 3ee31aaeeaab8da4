"""Counts [UNK] tokens per source, and warns if a vocabulary does not fit a source.

The counts are stored together with those of documents, under names that contain the
number of the source.
"""

import collections
from collections.abc import Iterator, Mapping

from bert_jax.config import ExperimentConfig

# Above this share of [UNK] among the tokens of a source, a warning is logged. The
# released vocabularies have 0.3% on Wikipedia in their languages.
WARN_SHARE = 0.01

_TOKENS = "tokens of source "


def count(
    counts: collections.Counter[str], source: int, num_tokens: int, num_unknown: int
) -> None:
    """Adds the tokens of a document to the counts of its source."""
    counts[_tokens(source)] += num_tokens
    counts[_unknown(source)] += num_unknown


def is_name(name: str) -> bool:
    """Returns whether `count` uses this name for a counter."""
    return _TOKENS in name


def num_tokens(counts: Mapping[str, int], source: int | None = None) -> int:
    """Returns the number of tokens of all documents of one source or, for None, of all.

    Further copies of documents are not counted.
    """
    if source is not None:
        return counts.get(_tokens(source), 0)
    return sum(value for name, value in counts.items() if name.startswith(_TOKENS))


def shares(counts: Mapping[str, int], num_sources: int) -> list[float]:
    """Returns the share of [UNK] among the tokens of each source."""
    return [
        round(counts.get(_unknown(i), 0) / max(1, counts.get(_tokens(i), 0)), 6)
        for i in range(num_sources)
    ]


def report(config: ExperimentConfig, found: list[float]) -> Iterator[str]:
    """Yields log lines and warnings about the share of [UNK] in each source."""
    by_source = list(zip(config.data.sources, found, strict=True))
    yield "[UNK] tokens: " + ", ".join(
        f"{share:.2%} of {spec!r}" for spec, share in by_source
    )
    for spec, share in by_source:
        if share > WARN_SHARE:
            yield (
                f"warning: {share:.1%} of the tokens of {spec!r} are [UNK], because the"
                f" vocabulary lacks characters of its text; {_remedy(config)}"
            )


def _remedy(config: ExperimentConfig) -> str:
    tokenizer = config.tokenizer
    if config.init_from and not tokenizer.vocab_file:
        return f"set config.init_from={config.init_from!r} to a model of its language"
    if tokenizer.vocab_file:
        return (
            f"set config.tokenizer.vocab_file={tokenizer.vocab_file!r} to a vocabulary"
            " of its language, or to '' to use that of config.init_from or train one,"
            " and check"
            f" config.tokenizer.lowercase={tokenizer.lowercase}"
        )
    # In WordPiece one unknown character makes its whole word [UNK].
    is_wordpiece = tokenizer.kind == "wordpiece"
    kind = " set config.tokenizer.kind='sentencepiece_unigram'," if is_wordpiece else ""
    return (
        f"raise config.tokenizer.vocab_size={tokenizer.vocab_size},{kind} or set"
        " config.tokenizer.vocab_file to a released vocabulary of its language"
    )


def _tokens(source: int) -> str:
    return f"{_TOKENS}{source}"


def _unknown(source: int) -> str:
    return f"unknown {_TOKENS}{source}"
