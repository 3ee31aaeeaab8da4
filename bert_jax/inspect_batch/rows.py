"""The rows of a step as people read them: pieces, masks, labels and where from."""

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
    """A place of a row.

    Attributes:
      piece: what the model sees.
      original: what stood there.
      part: "special", "a" or "b".
      mask: "" where there is nothing to predict, else "masked" ([MASK]), "random"
        (another token) or "kept" (itself).
      position: in its own pair, as in position_ids.
    """

    piece: str
    original: str
    part: str
    mask: str
    position: int


@dataclasses.dataclass(frozen=True)
class Pair:
    """A pair of a row; is_random is None and b too where there is no segment B."""

    tokens: tuple[Token, ...]
    is_random: bool | None
    a: provenance.Excerpt
    b: provenance.Excerpt | None


@dataclasses.dataclass(frozen=True)
class Row:
    number: int  # in the batch, from 1
    origin: provenance.Origin
    pairs: tuple[Pair, ...]
    num_padding: int


@dataclasses.dataclass(frozen=True)
class Step:
    """A step's whole batch, for a reader."""

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
        """Returns how many tokens of text are "masked", "random", "kept" and ""."""
        return collections.Counter(
            token.mask
            for pair in self.pairs
            for token in pair.tokens
            if token.part != "special"
        )

    def beginning(self, excerpt: provenance.Excerpt) -> str:
        """Returns the first words of the document that an excerpt is of."""
        text = self._decoder.decode(list(excerpt.beginning), skip_special_tokens=False)
        is_whole = len(excerpt.beginning) == excerpt.document_length
        return text if is_whole else text + " ..."

    @functools.cached_property
    def _decoder(self) -> tokenizers_lib.Tokenizer:
        return self.tokenizer.huggingface()


def find_step(config: ExperimentConfig, number: int) -> tuple[int, int]:
    """Returns the phase of a step, counted from 1, and which of its steps it is.

    Raises:
      ConfigError: when the run has no such step.
    """
    if not 1 <= number <= config.num_steps:
        raise ConfigError(
            f"--step={number} is not a step of the run; give one of 1 to"
            f" {config.num_steps}"
        )
    return phase_of(config, number - 1)


def read_step(
    corpus: corpus_lib.Corpus, config: ExperimentConfig, number: int, skips: Skips = ()
) -> Step:
    """Returns what `train` feeds the model in its step `number`, from 1."""
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
    """Takes a batch's arrays of one row, [T], [P] and [K]."""
    originals = dict(
        zip(
            arrays["masked_lm_positions"][arrays["masked_lm_weights"] > 0].tolist(),
            arrays["masked_lm_ids"].tolist(),
            strict=False,  # slots that are not used come last
        )
    )
    special = {vocab.index(tokenizers.CLS), vocab.index(tokenizers.SEP)}
    by_pair: list[list[Token]] = [[] for _ in origin.segments]
    num_padding = 0
    for place, (sequence, segment, position, token_id) in enumerate(
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
        original = originals.get(place, token_id)
        is_special = original in special and place not in originals
        by_pair[sequence - 1].append(
            Token(
                piece=vocab[token_id],
                original=vocab[original],
                part="special" if is_special else "ab"[segment],
                mask=_mask(vocab[token_id], vocab[original], place in originals),
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
            strict=False,  # a row may have fewer pairs than there is room for
        )
    )
    return Row(index + 1, origin, pairs, num_padding)


def _mask(piece: str, original: str, is_masked: bool) -> str:
    if not is_masked:
        return ""
    if piece == tokenizers.MASK:
        return "masked"
    return "kept" if piece == original else "random"


# ----------------------------------------------------------------- in words


def summary(step: Step) -> list[str]:
    """Returns a few lines on the whole batch."""
    pairs, masks = step.pairs, step.count_masks()
    num_places = len(step.rows) * step.sequence_length
    num_padding = sum(row.num_padding for row in step.rows)
    labels = [pair.is_random for pair in pairs if pair.is_random is not None]
    num_masked = masks.total() - masks[""]
    shares = ", ".join(
        f"{masks[kind]:,} {words} ({masks[kind] / max(num_masked, 1):.0%})"
        for kind, words in (
            ("masked", "became [MASK]"),
            ("random", "a random token"),
            ("kept", "stayed"),
        )
    )
    next_sentences = (
        f", B of {sum(labels):,} is random ({sum(labels) / len(labels):.0%})"
        if labels
        else ", no next sentence to predict"
    )
    return [
        f"step {step.number:,} of {step.num_steps:,}, phases[{step.phase_index}]:"
        f" {len(step.rows):,} rows of {step.sequence_length}"
        f" tokens, {num_padding / num_places:.1%} padding",
        f"pairs: {len(pairs):,}{next_sentences}",
        f"masks: {num_masked:,} of {masks.total():,} tokens of text"
        f" ({num_masked / masks.total():.0%}): {shares}",
    ]


def label_words(pair: Pair) -> str:
    """Returns what the next-sentence head is to answer."""
    if pair.is_random is None:
        return "segment A alone, no next sentence to predict"
    if pair.is_random:
        return "B is random, label 1 (NotNext)"
    return "B follows A, label 0 (IsNext)"


def excerpt_words(excerpt: provenance.Excerpt) -> str:
    return (
        f"tokens {excerpt.first + 1:,} to {excerpt.first + excerpt.length:,} of"
        f" {excerpt.document_length:,} of document {excerpt.document + 1:,}"
    )
