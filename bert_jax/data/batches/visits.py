"""Draws the rows that one visit to a shard gives: pairs, packed, in random order.

Shapes: R row of a visit, K sentence pair in a row, N pair of a pass.
"""

import dataclasses

import numpy as np

from bert_jax.config import DataConfig, ExperimentConfig, PhaseConfig
from bert_jax.data.batches import packing, pairs
from bert_jax.data.corpus.corpus import Corpus, Shard
from bert_jax.data.tokenizers import tokenizers

# First integer of a key: the purpose of the draw.
PAIRS, SHUFFLE, ORDER, ROWS = range(4)
# Passes over a shard's documents that may be drawn for the rows of one visit. One or
# two are enough, but a shard of a few sentences may not have enough distinct pairs.
MAX_PASSES = 4


@dataclasses.dataclass(frozen=True)
class Visit:
    """The rows of one visit to a shard.

    Attributes:
      epoch: of the stream.
      shard: the file's name.
      tokens: uint16 or uint32, the special tokens of a row and then the shard's as
        `Corpus.load_marked` gives them.
      pairs_RK5: int32, of each pair A start, A length, B start, B length, is_random;
        A starts count `tokens`; all 0 where there is no pair.
      keys_R2: uint32, of the rows' masks.
      document_starts: int64, the first token of each document, in `tokens`.
    """

    epoch: int
    shard: str
    tokens: np.ndarray
    pairs_RK5: np.ndarray
    keys_R2: np.ndarray
    document_starts: np.ndarray


def draw(
    corpus: Corpus,
    config: ExperimentConfig,
    phase: PhaseConfig,
    shard: Shard,
    num_rows: int,
    key: tuple[int, ...],
    epoch: int,
) -> Visit:
    """Draws a visit's pairs, packs them into rows and shuffles the rows.

    A pass over the documents gives more rows than num_rows or fewer. Rows in excess are
    dropped at random. Missing rows come from further passes, without the pairs of those
    before. Only where these give no new pair are rows repeated, under other masks.

    Args:
      corpus: that the shard belongs to.
      config: of the run.
      phase: of the config; gives the row's length and the pairs in a row.
      shard: to visit.
      num_rows: R, about the mean number of rows of a pass.
      key: of the draws; no other shard, epoch, phase or split has the same.
      epoch: of the stream.
    """
    tokens, documents = corpus.load_marked(shard)
    tokenizer = corpus.tokenizer
    special = [tokenizer.id(tokenizers.CLS), tokenizer.id(tokenizers.SEP)]
    special += [tokenizer.id(tokenizers.PAD)] * phase.sequence_length
    tokens = np.concatenate([np.array(special, tokens.dtype), tokens])
    rows = _draw_rows(documents, config.data, phase, num_rows, key)
    rows[:, :, 0:4:2] += len(special) * (rows[:, :, 1:2] > 0)
    keys = pairs.CounterRandom(ROWS, *key).words(num_rows)
    first_tokens = documents.token_offsets[documents.sentence_offsets[:-1]]
    return Visit(
        epoch=epoch,
        shard=shard.file,
        tokens=tokens,
        pairs_RK5=rows,
        keys_R2=keys.view(np.uint32).reshape(-1, 2),
        document_starts=first_tokens + len(special),
    )


def _draw_rows(
    documents: pairs.Documents,
    data: DataConfig,
    phase: PhaseConfig,
    num_rows: int,
    key: tuple[int, ...],
) -> np.ndarray:
    """Returns int32[num_rows, K, 5] as in `Visit`, but A and B starts count tokens."""
    draw_pass = pairs.draw_pairs if data.next_sentence else pairs.draw_segments
    shuffle = pairs.CounterRandom(SHUFFLE, *key)
    found: list[np.ndarray] = []
    kept: list[np.ndarray] = []
    missing = num_rows
    for number in range(MAX_PASSES):
        random = pairs.CounterRandom(PAIRS, *key, number)
        drawn = draw_pass(documents, phase.sequence_length, data.short_seq_prob, random)
        pairs_N5 = _new_pairs(_as_columns(drawn), found)
        found.append(pairs_N5)
        rows = _pack(pairs_N5, phase, random)
        rows = rows[shuffle.order(len(rows))[:missing]]
        kept.append(rows)
        missing -= len(rows)
        if not missing:
            break
    every = np.concatenate(kept)
    return every[shuffle.order(num_rows) % len(every)]


def _as_columns(drawn: pairs.Pairs) -> np.ndarray:
    """Returns int32[N, 5]: A start, A length, B start, B length, is_random."""
    columns = [getattr(drawn, field.name) for field in dataclasses.fields(drawn)]
    return np.stack(columns, axis=1).astype(np.int32)


def _new_pairs(pairs_N5: np.ndarray, found: list[np.ndarray]) -> np.ndarray:
    """Returns the pairs whose A and B are not those of a pair in `found`."""
    if not found:
        return pairs_N5
    known = np.concatenate([_digests(each) for each in found])
    return pairs_N5[~np.isin(_digests(pairs_N5), known)]


def _digests(pairs_N5: np.ndarray) -> np.ndarray:
    """Returns uint64[N], hashes of where A and B are."""
    digests = np.zeros(len(pairs_N5), np.uint64)
    for column in pairs_N5.T[:4]:
        digests = (digests + column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        digests ^= digests >> np.uint64(32)
    return digests


def _pack(
    pairs_N5: np.ndarray, phase: PhaseConfig, random: pairs.CounterRandom
) -> np.ndarray:
    """Returns a pass's rows, int32[R, K, 5], 0 where there is no pair."""
    K = phase.max_sequences_per_row
    if K == 1:
        return pairs_N5[:, None]
    # Which of the pairs of one length go together is drawn anew each time.
    pairs_N5 = pairs_N5[random.order(len(pairs_N5))]
    lengths_N = pairs_N5[:, 1] + pairs_N5[:, 3] + 2 + (pairs_N5[:, 3] > 0)
    index_RK = packing.pack(lengths_N, phase.sequence_length, K)
    return np.where(index_RK[:, :, None] >= 0, pairs_N5[index_RK], 0)
