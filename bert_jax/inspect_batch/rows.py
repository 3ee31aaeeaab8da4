"""Converts the rows of a step to readable tokens, masks, labels and sources."""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches.visits import StepRows, Visit
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.data.corpus import shard_file
from bert_jax.data.tokenizers import base
from bert_jax.phases import Skips, batch_of

# The number of tokens from the start of a document that are shown to identify it.
BEGINNING_TOKENS = 24


# What the model's input has in the place of a predicted token.
MASKS = {
    "masked": "replaced by [MASK]",
    "random": "replaced by a random token",
    "kept": "unchanged",
}


@dataclasses.dataclass(frozen=True)
class Token:
    piece: str  # in the model's input
    original: str  # before masking
    part: str  # "special", "a" or "b"
    mask: str  # of MASKS; "" if the token is not predicted
    position: int  # in its pair, as in position_ids


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """The position of a segment in its document."""

    document: int  # index in the shard
    first: int  # index of the first token in the document
    length: int  # number of tokens
    document_length: int  # number of tokens of the document
    beginning: str  # of the document

    @property
    def place(self) -> str:
        return (
            f"tokens {self.first + 1:,} to {self.first + self.length:,} of"
            f" {self.document_length:,} of document {self.document + 1:,}, which"
            " begins:"
        )


@dataclasses.dataclass(frozen=True)
class Pair:
    tokens: tuple[Token, ...]
    is_random: bool | None  # None if there is no segment B
    segments: tuple[Excerpt, ...]  # A, and B if there is one

    @property
    def label(self) -> str:
        """Returns the target of next sentence prediction."""
        if self.is_random is None:
            return "segment A only, no next sentence prediction"
        if self.is_random:
            return "B is random, label 1 (NotNext)"
        return "B follows A, label 0 (IsNext)"


@dataclasses.dataclass(frozen=True)
class Row:
    number: int  # in the batch, from 1
    shard: str  # file name
    epoch: int  # of the stream that reads the shard, from 0
    index: int  # in the visit to the shard
    pairs: tuple[Pair, ...]
    num_padding: int

    @property
    def place(self) -> str:
        return f"row {self.index + 1:,} of epoch {self.epoch + 1} of {self.shard}"


@dataclasses.dataclass(frozen=True)
class Step:
    number: int
    num_steps: int
    phase_index: int
    sequence_length: int
    rows: tuple[Row, ...]

    @property
    def pairs(self) -> list[Pair]:
        return [pair for row in self.rows for pair in row.pairs]

    def count_masks(self) -> collections.Counter[str]:
        """Counts the text tokens that are "masked", "random", "kept" and ""."""
        tokens = (token for pair in self.pairs for token in pair.tokens)
        return collections.Counter(x.mask for x in tokens if x.part != "special")


def read_step(
    corpus: corpus_lib.Corpus, config: ExperimentConfig, number: int, skips: Skips = ()
) -> Step:
    """Reads the batch that `train` uses in step `number`, counted from 1."""
    phase_index, batch_number = batch_of(config, number - 1, skips)
    made = StepRows(
        corpus, config, split="train", seed=config.seed, phase_index=phase_index
    )
    batch = made.make(batch_number)  # and maybe some batches after it
    decode, rows = corpus.tokenizer.huggingface().decode, []
    for drawn, first, stop in made.parts(batch_number, 1):
        visit = drawn.result()
        for index in range(first, stop):
            arrays = {name: x[len(rows)] for name, x in batch.items()}
            drawn_pairs = [pair for pair in visit.pairs_RK5[index].tolist() if pair[1]]
            segments = [_excerpts(corpus, visit, decode, pair) for pair in drawn_pairs]
            found = zip(arrays["next_sentence_labels"], drawn_pairs, strict=False)
            labels = [bool(label) if pair[3] else None for label, pair in found]
            tokens, num_padding = _tokens(arrays, corpus.tokenizer.vocab, len(segments))
            pairs = tuple(map(Pair, tokens, labels, segments))
            place = visit.shard, visit.epoch, index
            rows.append(Row(len(rows) + 1, *place, pairs, num_padding))
    made.close()
    length = config.phases[phase_index].sequence_length
    return Step(number, config.num_steps, phase_index, length, tuple(rows))


def _tokens(
    arrays: dict[str, np.ndarray], vocab: tuple[str, ...], num_pairs: int
) -> tuple[list[tuple[Token, ...]], int]:
    """Returns the tokens of each pair of a row, and the number of padding tokens."""
    used = arrays["masked_lm_weights"] > 0
    places = arrays["masked_lm_positions"][used].tolist()
    originals = dict(zip(places, arrays["masked_lm_ids"][used].tolist(), strict=True))
    by_pair: list[list[Token]] = [[] for _ in range(num_pairs)]
    names = ("sequence_ids", "segment_ids", "position_ids", "input_ids")
    columns = [arrays[name].tolist() for name in names]
    for i, (pair, segment, position, id_) in enumerate(zip(*columns, strict=True)):
        if not pair:
            continue
        piece, original = vocab[id_], vocab[originals.get(i, id_)]
        part, mask = "ab"[segment], ""
        if i in originals:
            kind = "kept" if piece == original else "random"
            mask = "masked" if piece == base.MASK else kind
        elif piece in (base.CLS, base.SEP):
            part = "special"
        by_pair[pair - 1].append(Token(piece, original, part, mask, position))
    return list(map(tuple, by_pair)), columns[0].count(0)


def _excerpts(
    corpus: corpus_lib.Corpus, visit: Visit, decode: Callable[..., str], pair: list[int]
) -> tuple[Excerpt, ...]:
    starts, excerpts = visit.document_starts_D, []
    for start, length in (pair[:2], pair[2:4]):
        if not length:
            continue
        document = int(np.searchsorted(starts, start, side="right")) - 1
        first = int(starts[document])
        end = int(np.append(starts, len(visit.tokens))[document + 1])
        ids = visit.tokens[first:end][:BEGINNING_TOKENS]
        if corpus.word_segmented:
            ids, _ = shard_file.split_marks(ids)
        beginning = decode(ids.tolist(), skip_special_tokens=False)
        beginning += " ..." * (end - first > BEGINNING_TOKENS)
        place = document, start - first, length, end - first
        excerpts.append(Excerpt(*place, beginning))
    return tuple(excerpts)


def summary(step: Step) -> list[str]:
    """Returns a few lines that summarize the whole batch."""
    pairs, masks = step.pairs, step.count_masks()
    num_positions = len(step.rows) * step.sequence_length
    num_padding = sum(row.num_padding for row in step.rows)
    labels = [pair.is_random for pair in pairs if pair.is_random is not None]
    num_masked = masks.total() - masks[""]
    shares = ", ".join(
        f"{masks[kind]:,} {words} ({masks[kind] / max(num_masked, 1):.0%})"
        for kind, words in MASKS.items()
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
