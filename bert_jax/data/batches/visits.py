"""Streams of visits to shards, the rows of a visit, and those of a step.

Shapes: R row of a visit, N pair of a pass, B row of a batch, T token, P masked
position, K sentence pair in a row, W any of the last three, S step, D document.
"""

import bisect
import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import NotRequired, TypedDict

import numpy as np

from bert_jax.config import DataConfig, ExperimentConfig, PhaseConfig
from bert_jax.data.batches import masking, pairs, row_layout
from bert_jax.data.corpus import shard_file
from bert_jax.data.corpus.corpus import Corpus, Shard
from bert_jax.phases import phase_starts

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

    @functools.cached_property
    def _num_rows(self) -> int:
        return sum(self.rows)

    @functools.cached_property
    def _ordered(self) -> Callable[[int], tuple[list[int], list[int]]]:
        """Maps an epoch to the order of its visits and to the ends of their rows."""

        def ordered(epoch: int) -> tuple[list[int], list[int]]:
            random = pairs.CounterRandom(ORDER, *self.key, epoch, self.index)
            order = random.order(len(self.shards)).tolist()
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
    document_starts_D: np.ndarray  # int64, indices in `tokens`


def draw(
    corpus: Corpus,
    data: DataConfig,
    phase: PhaseConfig,
    stream: Stream,
    epoch: int,
    index: int,
) -> Visit:
    """Draws the pairs of a visit, packs them into rows and shuffles the rows.

    The visit is that of a stream to one of its shards in an epoch. A pass over the
    documents may give more or fewer rows than a visit has. Excess rows are dropped at
    random. Missing rows are drawn in further passes, without the pairs of earlier
    passes. If these give no new pairs, rows are repeated with other masks.
    """
    (number, shard), num_rows = stream.shards[index], stream.rows[index]
    key = (*stream.key, epoch, number)
    tokens, documents = corpus.load_marked(shard)
    special = row_layout.special_ids(corpus.tokenizer, phase.sequence_length)
    tokens = np.concatenate([special.astype(tokens.dtype), tokens])
    rows = _draw_rows(documents, data, phase, num_rows, key)
    rows[:, :, 0:4:2] += len(special) * (rows[:, :, 1:2] > 0)
    keys = pairs.CounterRandom(ROWS, *key).words(num_rows)
    first_tokens = documents.token_offsets[documents.sentence_offsets[:-1]]
    return Visit(
        epoch=epoch,
        shard=shard.file,
        tokens=tokens,
        pairs_RK5=rows,
        keys_R2=keys.view(np.uint32).reshape(-1, 2),
        document_starts_D=first_tokens + len(special),
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


# ------------------------------------------------------------- the rows of a step

Batch = dict[str, np.ndarray]

# The number of threads that make rows. NumPy releases the GIL while it computes, but
# not in between, so more than two threads are not faster.
NUM_THREADS = 2
# Smaller batches are made for several steps at once: NumPy operations on few tokens are
# so short that the threads spend much of their time waiting for the GIL (half as many
# rows per second, at 256 rows of 128 tokens).
TOKENS_AT_A_TIME = 2**18
MAX_STEPS_AT_A_TIME = 8

# Index of the stream, epoch and index of the shard in the stream.
VisitKey = tuple[int, int, int]


class Selection(TypedDict):
    """Selects the rows of a phase that a host makes: the arguments of `StepRows`."""

    split: str  # "train" or "validation", which is one small stream
    seed: int
    phase_index: int  # in config.phases; each phase starts a new epoch
    host: NotRequired[int]
    num_hosts: NotRequired[int]  # divides the global_batch_size of the phase


# Consecutive rows of a visit, which may be in progress: the first, and the one after
# the last.
Part = tuple[concurrent.futures.Future[Visit], int, int]


class StepRows:
    """Builds a host's rows of any step of a phase.

    Threads may call it at the same time. It keeps the visits of the latest calls and
    draws the following ones ahead, so that calls in the order of the steps draw each
    visit once.

    Attributes:
      size: the number of this host's rows in a step.
      num_steps: the number of steps to make at a time.
    """

    def __init__(
        self,
        corpus: Corpus,
        config: ExperimentConfig,
        *,
        split: str,
        seed: int,
        phase_index: int,
        host: int = 0,
        num_hosts: int = 1,
    ):
        self.phase = phase = config.phases[phase_index]
        self._corpus, self._config = corpus, config
        self._step_before = phase_starts(config)[phase_index]
        streams = make_streams(corpus, config, split, seed, phase_index)
        self._per_stream = phase.global_batch_size // len(streams)
        self.size = phase.global_batch_size // num_hosts
        # The streams that contain rows of this host: whole streams, if num_hosts
        # divides their number.
        start, stop = host * self.size, (host + 1) * self.size
        read = slice(start // self._per_stream, -(-stop // self._per_stream))
        self._streams = streams[read]
        self._first = start - read.start * self._per_stream
        num_read = len(self._streams) * self._per_stream
        at_a_time = TOKENS_AT_A_TIME // (num_read * phase.sequence_length)
        self.num_steps = max(1, min(MAX_STEPS_AT_A_TIME, at_a_time))
        self._rule = masking.MaskRule.from_config(config, phase, corpus.tokenizer)
        # Files need two threads: for the shard that is needed, and for the next. Those
        # of a stream wait for its processes.
        num_threads = max(2, corpus.stream.num_workers if corpus.stream else 0)
        self._pool = concurrent.futures.ThreadPoolExecutor(num_threads)
        self._lock = threading.Lock()
        self._visits: dict[VisitKey, concurrent.futures.Future[Visit]] = {}
        # The visits of the calls that may be running, and those that follow them.
        self._in_use = collections.deque[set[VisitKey]](maxlen=NUM_THREADS + 1)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def parts(self, first_step: int, num_steps: int) -> list[Part]:
        """Returns the parts of visits that contain the rows of some steps, in order.

        They include rows of other hosts in the streams of this one.
        """
        rows = [
            ((i, epoch, index), first, stop)
            for step in range(first_step, first_step + num_steps)
            for i, stream in enumerate(self._streams)
            for epoch, index, first, stop in stream.parts(
                step * self._per_stream, self._per_stream
            )
        ]
        last_row = (first_step + num_steps) * self._per_stream - 1
        following = []
        for i, stream in enumerate(self._streams):
            _, (epoch, index, _) = itertools.islice(stream.visits(last_row), 2)
            following.append((i, epoch, index))
        with self._lock:
            needed = dict.fromkeys([*(key for key, _, _ in rows), *following])
            for key in needed:
                if key not in self._visits:
                    i, *visit = key
                    settings = self._corpus, self._config.data, self.phase
                    self._visits[key] = self._pool.submit(
                        draw, *settings, self._streams[i], *visit
                    )
            parts = [(self._visits[key], first, stop) for key, first, stop in rows]
            self._in_use.append({*needed})
            for key in self._visits.keys() - set().union(*self._in_use):
                del self._visits[key]
        return parts

    def make(self, first_step: int) -> Batch:
        """Returns this host's rows of `num_steps` steps, see `pipeline.dataset`."""
        own = slice(self._first, self._first + self.size)

        def cut(rows_BW: np.ndarray) -> np.ndarray:
            by_step = rows_BW.reshape(self.num_steps, -1, rows_BW.shape[-1])
            return by_step[:, own].reshape(-1, rows_BW.shape[-1])

        steps_S = self._step_before + first_step + np.arange(self.num_steps)
        rates_S = masking.mask_rates(self._config, steps_S)
        made = self._rows(self.parts(first_step, self.num_steps), rates_S)
        return {name: cut(x) for name, x in made.items()}

    def _rows(self, parts: list[Part], rates_S: np.ndarray) -> Batch:
        """Returns the rows of consecutive steps with these rates of masks."""
        drawn = [(visit.result(), first, stop) for visit, first, stop in parts]
        pairs_BK5 = np.concatenate([visit.pairs_RK5[i:j] for visit, i, j in drawn])
        keys_B2 = np.concatenate([visit.keys_R2[i:j] for visit, i, j in drawn])
        layout = row_layout.lay_out(pairs_BK5, self.phase.sequence_length)
        ids_BT = np.empty(layout.source_BT.shape, drawn[0][0].tokens.dtype)
        row = 0
        for visit, i, j in drawn:
            rows = slice(row, row := row + j - i)
            # All indices are in range; mode="clip" writes to `out` without a copy.
            np.take(visit.tokens, layout.source_BT[rows], out=ids_BT[rows], mode="clip")
        continues_BT = None
        if self._corpus.word_segmented:
            ids_BT, continues_BT = shard_file.split_marks(ids_BT)
        rates_B1 = np.repeat(rates_S, len(ids_BT) // len(rates_S))[:, None]
        input_ids_BT, positions_BP, ids_BP, weights_BP = masking.mask_rows(
            ids_BT.astype(np.int32),
            layout.candidates_BT,
            pairs_BK5[:, :, 1] + pairs_BK5[:, :, 3].astype(np.int64),
            masking.num_to_predict(
                layout.lengths_BK, rates_B1, self.phase.max_predictions
            ),
            keys_B2,
            self._rule,
            continues_BT,
        )
        return layout.inputs(input_ids_BT) | {
            "masked_lm_positions": positions_BP,
            "masked_lm_ids": ids_BP,
            "masked_lm_weights": weights_BP,
            "next_sentence_positions": layout.first_BK,
            "next_sentence_labels": pairs_BK5[:, :, 4],
            "next_sentence_weights": (pairs_BK5[:, :, 3] > 0).astype(np.float32),
        }
