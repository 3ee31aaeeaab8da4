"""Streams of visits to shards, and the rows of a visit: pairs, packed and shuffled.

Shapes: R row of a visit, K sentence pair in a row, N pair of a pass.
"""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from bert_jax.config import DataConfig, ExperimentConfig, PhaseConfig
from bert_jax.data.batches import pairs
from bert_jax.data.corpus.corpus import Corpus, Shard
from bert_jax.data.tokenizers import tokenizers

# The first integer of a key: the purpose of the draw.
PAIRS, SHUFFLE, ORDER, ROWS = range(4)
# The maximum number of passes over the documents that are drawn for one visit. One or
# two are enough, unless a shard of few sentences lacks distinct pairs.
MAX_PASSES = 4
_SPLIT_KEYS = {"train": 0, "validation": 1}


@dataclasses.dataclass(frozen=True)
class Stream:
    index: int
    shards: tuple[tuple[int, Shard], ...]  # (index in the split, shard)
    rows: tuple[int, ...]  # number of rows of one visit to each shard
    key: tuple[int, ...]  # seed, split and phase, part of the key of every draw

    def order(self, epoch: int) -> np.ndarray:
        random = pairs.CounterRandom(ORDER, *self.key, epoch, self.index)
        return random.order(len(self.shards))

    def visits(self, first_row: int) -> Iterator[tuple[int, int, int]]:
        """Yields (epoch, index into shards, first row of the visit), from `first_row`.

        Only the first visit can start at a row other than 0.
        """
        epoch, row = divmod(first_row, self._num_rows)
        order, ends = self._ordered(epoch)
        start = bisect.bisect_right(ends, row)
        row -= ends[start - 1] if start else 0
        while True:
            for index in order[start:]:
                yield epoch, index, row
                row = 0
            epoch, start = epoch + 1, 0
            order, _ = self._ordered(epoch)

    def parts(self, first_row: int, num_rows: int) -> Iterator[tuple[int, ...]]:
        """Yields (epoch, index into shards, first row, row after the last) of rows."""
        for epoch, index, row in self.visits(first_row):
            stop = min(self.rows[index], row + num_rows)
            yield epoch, index, row, stop
            num_rows -= stop - row
            if not num_rows:
                return

    def following_visit(self, row: int) -> tuple[int, int]:
        """Returns (epoch, index into shards) of the visit after the one of a row."""
        following = self.visits(row)
        next(following)
        epoch, index, _ = next(following)
        return epoch, index

    @functools.cached_property
    def _num_rows(self) -> int:
        return sum(self.rows)

    @functools.cached_property
    def _ordered(self) -> Callable[[int], tuple[list[int], list[int]]]:
        """Maps an epoch to the order of its visits and to the ends of their rows."""

        def ordered(epoch: int) -> tuple[list[int], list[int]]:
            order = [i for i in self.order(epoch).tolist() if self.rows[i]]
            return order, np.cumsum([self.rows[i] for i in order]).tolist()

        return functools.lru_cache(maxsize=2)(ordered)


def make_streams(
    corpus: Corpus, config: ExperimentConfig, split: str, seed: int, phase_index: int
) -> list[Stream]:
    """Distributes the shards of a split over num_streams streams, 1 for validation."""
    num_streams = config.data.num_streams if split == "train" else 1
    shards = list(enumerate(corpus.shards[split]))
    rows = corpus.rows_per_epoch(split, config.data, config.phases[phase_index])
    return [
        Stream(
            index=i,
            shards=tuple(shards[i::num_streams]),
            rows=tuple(rows[i::num_streams]),
            key=(seed, _SPLIT_KEYS[split], phase_index),
        )
        for i in range(num_streams)
    ]


@dataclasses.dataclass(frozen=True)
class Visit:
    epoch: int  # of the stream
    shard: str  # file name
    # uint16 or uint32, the special tokens of a row, see row_layout.py, followed by the
    # tokens of the shard, see `Corpus.load_marked`.
    tokens: np.ndarray
    # int32, A start, A length, B start, B length and is_random of each pair; all 0 if
    # there is no pair. Starts are indices in `tokens`.
    pairs_RK5: np.ndarray
    keys_R2: np.ndarray  # uint32, of the masks of the rows
    document_starts: np.ndarray  # int64, index in `tokens` of the first token of each


def draw(
    corpus: Corpus,
    config: ExperimentConfig,
    phase: PhaseConfig,
    shard: Shard,
    num_rows: int,
    key: tuple[int, ...],
    epoch: int,
) -> Visit:
    """Draws the pairs of a visit, packs them into rows and shuffles the rows.

    A pass over the documents may give more or fewer rows than num_rows. Excess rows are
    dropped at random. Missing rows are drawn in further passes, without the pairs of
    earlier passes. If these give no new pairs, rows are repeated with other masks.
    `key` is that of the draws, unique to the shard, epoch, phase and split.
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
    """Returns int32[num_rows, K, 5] as in `Visit`, but starts refer to the shard."""
    draw_pass = pairs.draw_pairs if data.next_sentence else pairs.draw_segments
    shuffle = pairs.CounterRandom(SHUFFLE, *key)
    earlier: list[np.ndarray] = []
    kept: list[np.ndarray] = []
    missing = num_rows
    for number in range(MAX_PASSES):
        random = pairs.CounterRandom(PAIRS, *key, number)
        drawn = draw_pass(documents, phase.sequence_length, data.short_seq_prob, random)
        pairs_N5 = _new_pairs(drawn.as_columns(), earlier)
        earlier.append(pairs_N5)
        rows = _pack(pairs_N5, phase, random)
        rows = rows[shuffle.order(len(rows))[:missing]]
        kept.append(rows)
        missing -= len(rows)
        if not missing:
            break
    every = np.concatenate(kept)
    return every[shuffle.order(num_rows) % len(every)]


def _new_pairs(pairs_N5: np.ndarray, earlier: list[np.ndarray]) -> np.ndarray:
    """Returns the pairs whose positions of A and B are not in `earlier`."""
    if not earlier:
        return pairs_N5
    known = np.concatenate([_digests(each) for each in earlier])
    return pairs_N5[~np.isin(_digests(pairs_N5), known)]


def _digests(pairs_N5: np.ndarray) -> np.ndarray:
    """Returns uint64[N], hashes of the positions of A and B."""
    digests = np.zeros(len(pairs_N5), np.uint64)
    for column in pairs_N5.T[:4]:
        digests = (digests + column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        digests ^= digests >> np.uint64(32)
    return digests


def _pack(
    pairs_N5: np.ndarray, phase: PhaseConfig, random: pairs.CounterRandom
) -> np.ndarray:
    """Packs the pairs of a pass; returns int32[R, K, 5], 0 if there is no pair."""
    K = phase.max_sequences_per_row
    if K == 1:
        return pairs_N5[:, None]
    # Shuffled, so that pairs of equal length are combined at random.
    pairs_N5 = pairs_N5[random.order(len(pairs_N5))]
    lengths_N = pairs_N5[:, 1] + pairs_N5[:, 3] + 2 + (pairs_N5[:, 3] > 0)
    index_RK = pairs.pack(lengths_N, phase.sequence_length, K)
    return np.where(index_RK[:, :, None] >= 0, pairs_N5[index_RK], 0)
