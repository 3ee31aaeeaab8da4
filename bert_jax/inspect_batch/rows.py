"""Converts the rows of a step to readable tokens, masks, labels and sources."""

import collections
import dataclasses
import functools

import numpy as np
import tokenizers as tokenizers_lib

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline, provenance
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError
from bert_jax.phases import Skips, batch_of


@dataclasses.dataclass(frozen=True)
class Token:
    """One token of a row."""

    piece: str  # in the model's input
    original: str  # before masking
    part: str  # "special", "a" or "b"
    mask: str  # "" if it is not predicted, else "masked", "random" or "kept"


@dataclasses.dataclass(frozen=True)
class Pair:
    """One pair of a row; `is_random` and `b` are None if there is no segment B."""

    tokens: tuple[Token, ...]
    is_random: bool | None
    a: provenance.Excerpt
    b: provenance.Excerpt | None


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a batch."""

    number: int  # number in the batch, from 1
    origin: provenance.Origin
    pairs: tuple[Pair, ...]
    num_padding: int


@dataclasses.dataclass(frozen=True)
class Step:
    """The whole batch of a step."""

    number: int
    num_steps: int
    phase_index: int
    sequence_length: int
    rows: tuple[Row, ...]
    tokenizer: tokenizers.Tokenizer

    @property
    def pairs(self) -> list[Pair]:
        return [pair for row in self.rows for pair in row.pairs]

    def count_masks(self) -> collections.Counter[str]:
        """Counts the text tokens that are "masked", "random", "kept" and ""."""
        return collections.Counter(
            token.mask
            for pair in self.pairs
            for token in pair.tokens
            if token.part != "special"
        )

    def beginning(self, excerpt: provenance.Excerpt) -> str:
        """Returns the first words of the document that contains an excerpt."""
        text = self._decoder.decode(list(excerpt.beginning), skip_special_tokens=False)
        is_whole = len(excerpt.beginning) == excerpt.document_length
        return text if is_whole else text + " ..."

    @functools.cached_property
    def _decoder(self) -> tokenizers_lib.Tokenizer:
        return self.tokenizer.huggingface()


def check_step(config: ExperimentConfig, number: int) -> None:
    """Raises ConfigError if the run has no step of this number, from 1."""
    if not 1 <= number <= config.num_steps:
        raise ConfigError(
            f"--step={number} is not a step of the run; give a step from 1 to"
            f" {config.num_steps}"
        )


def read_step(
    corpus: corpus_lib.Corpus, config: ExperimentConfig, number: int, skips: Skips = ()
) -> Step:
    """Reads the batch that `train` uses in step `number`, counted from 1."""
    phase_index, batch_number = batch_of(config, number - 1, skips)
    batch = next(
        pipeline.batches(
            corpus,
            config,
            split="train",
            seed=config.seed,
            phase_index=phase_index,
            first_step=batch_number,
        )
    )
    origins = provenance.origins(
        corpus,
        config,
        split="train",
        seed=config.seed,
        phase_index=phase_index,
        step=batch_number,
    )
    vocab = corpus.tokenizer.vocab
    return Step(
        number=number,
        num_steps=config.num_steps,
        phase_index=phase_index,
        sequence_length=config.phases[phase_index].sequence_length,
        rows=tuple(
            _row(i, {name: rows[i] for name, rows in batch.items()}, origin, vocab)
            for i, origin in enumerate(origins)
        ),
        tokenizer=corpus.tokenizer,
    )


def _row(
    index: int,
    arrays: dict[str, np.ndarray],
    origin: provenance.Origin,
    vocab: tuple[str, ...],
) -> Row:
    """Converts one row of a batch; its arrays are [T], [P] or [K].

    T is token, P masked position, K pair of the row.
    """
    is_used_P = arrays["masked_lm_weights"] > 0
    positions = arrays["masked_lm_positions"][is_used_P].tolist()
    masked_ids = arrays["masked_lm_ids"][is_used_P].tolist()
    originals = dict(zip(positions, masked_ids, strict=True))
    special = {vocab.index(tokenizers.CLS), vocab.index(tokenizers.SEP)}
    tokens: list[list[Token]] = [[] for _ in origin.segments]
    names = ("sequence_ids", "segment_ids", "input_ids")
    columns = zip(*(arrays[name].tolist() for name in names), strict=True)
    for position, (sequence, segment, token_id) in enumerate(columns):
        if not sequence:
            continue
        original = originals.get(position, token_id)
        is_masked = position in originals
        is_special = original in special and not is_masked
        part = "special" if is_special else "ab"[segment]
        mask = _mask(vocab[token_id], vocab[original]) if is_masked else ""
        token = Token(vocab[token_id], vocab[original], part, mask)
        tokens[sequence - 1].append(token)
    labels = arrays["next_sentence_labels"].tolist()
    weights = arrays["next_sentence_weights"].tolist()
    pairs = tuple(
        Pair(tuple(tokens[k]), bool(labels[k]) if weights[k] else None, a, b)
        for k, (a, b) in enumerate(origin.segments)
    )
    num_padding = int((arrays["sequence_ids"] == 0).sum())
    return Row(index + 1, origin, pairs, num_padding)


def _mask(piece: str, original: str) -> str:
    if piece == tokenizers.MASK:
        return "masked"
    return "kept" if piece == original else "random"
