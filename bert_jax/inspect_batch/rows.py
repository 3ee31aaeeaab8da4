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
from bert_jax.phases import Skips, batch_of, phase_of


@dataclasses.dataclass(frozen=True)
class Token:
    """One token of a row.

    Attributes:
      piece: the token in the model's input.
      original: the token before masking.
      part: "special", "a" or "b".
      mask: "" if the token is not predicted, else "masked" (replaced by [MASK]),
        "random" (replaced by a random token) or "kept" (unchanged).
      position: position in its pair, as in position_ids.
    """

    piece: str
    original: str
    part: str
    mask: str
    position: int


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


def find_step(config: ExperimentConfig, number: int) -> tuple[int, int]:
    """Returns the phase index of a step and the step's index in that phase.

    Args:
      number: step number, from 1.

    Raises:
      ConfigError: if the run has no such step.
    """
    if not 1 <= number <= config.num_steps:
        raise ConfigError(
            f"--step={number} is not a step of the run; give a step from 1 to"
            f" {config.num_steps}"
        )
    return phase_of(config, number - 1)


def read_step(
    corpus: corpus_lib.Corpus, config: ExperimentConfig, number: int, skips: Skips = ()
) -> Step:
    """Reads the batch that `train` uses in step `number`, counted from 1."""
    find_step(config, number)
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
    originals = dict(
        zip(
            arrays["masked_lm_positions"][arrays["masked_lm_weights"] > 0].tolist(),
            arrays["masked_lm_ids"].tolist(),
            strict=False,  # unused slots are last
        )
    )
    special = {vocab.index(tokenizers.CLS), vocab.index(tokenizers.SEP)}
    by_pair: list[list[Token]] = [[] for _ in origin.segments]
    num_padding = 0
    for index_in_row, (sequence, segment, position, token_id) in enumerate(
        zip(
            *(
                arrays[name].tolist()
                for name in ("sequence_ids", "segment_ids", "position_ids", "input_ids")
            ),
            strict=True,
        )
    ):
        if not sequence:
            num_padding += 1
            continue
        original = originals.get(index_in_row, token_id)
        is_masked = index_in_row in originals
        is_special = original in special and not is_masked
        by_pair[sequence - 1].append(
            Token(
                piece=vocab[token_id],
                original=vocab[original],
                part="special" if is_special else "ab"[segment],
                mask=_mask(vocab[token_id], vocab[original], is_masked),
                position=position,
            )
        )
    pairs = tuple(
        Pair(
            tokens=tuple(tokens),
            is_random=bool(label) if weight else None,
            a=a,
            b=b,
        )
        for tokens, (a, b), label, weight in zip(
            by_pair,
            origin.segments,
            arrays["next_sentence_labels"].tolist(),
            arrays["next_sentence_weights"].tolist(),
            strict=False,  # the arrays have room for more pairs than the row has
        )
    )
    return Row(index + 1, origin, pairs, num_padding)


def _mask(piece: str, original: str, is_masked: bool) -> str:
    if not is_masked:
        return ""
    if piece == tokenizers.MASK:
        return "masked"
    return "kept" if piece == original else "random"


# ------------------------------------------------------------- descriptions


def summary(step: Step) -> list[str]:
    """Returns a few lines that summarize the whole batch."""
    pairs, masks = step.pairs, step.count_masks()
    num_positions = len(step.rows) * step.sequence_length
    num_padding = sum(row.num_padding for row in step.rows)
    labels = [pair.is_random for pair in pairs if pair.is_random is not None]
    num_masked = masks.total() - masks[""]
    shares = ", ".join(
        f"{masks[kind]:,} {words} ({masks[kind] / max(num_masked, 1):.0%})"
        for kind, words in (
            ("masked", "replaced by [MASK]"),
            ("random", "by a random token"),
            ("kept", "unchanged"),
        )
    )
    next_sentences = ", no next sentence prediction"
    if labels:
        share = sum(labels) / len(labels)
        next_sentences = (
            f", {sum(labels):,} with random B ({share:.0%}); always giving the more"
            f" frequent label has accuracy {max(share, 1 - share):.0%}"
        )
    return [
        f"step {step.number:,} of {step.num_steps:,}, phases[{step.phase_index}]:"
        f" {len(step.rows):,} rows of {step.sequence_length}"
        f" tokens, {num_padding / num_positions:.1%} padding",
        f"pairs: {len(pairs):,}{next_sentences}",
        f"masks: {num_masked:,} of {masks.total():,} text tokens"
        f" ({num_masked / masks.total():.0%}): {shares}",
    ]


def label_words(pair: Pair) -> str:
    """Describes the target of next sentence prediction."""
    if pair.is_random is None:
        return "segment A only, no next sentence prediction"
    if pair.is_random:
        return "B is random, label 1 (NotNext)"
    return "B follows A, label 0 (IsNext)"


def excerpt_words(excerpt: provenance.Excerpt) -> str:
    """Describes the position of an excerpt in its document."""
    return (
        f"tokens {excerpt.first + 1:,} to {excerpt.first + excerpt.length:,} of"
        f" {excerpt.document_length:,} of document {excerpt.document + 1:,}"
    )
