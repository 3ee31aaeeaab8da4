"""Streams: the order in which the shards of a split are read."""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pairs, visits
from bert_jax.data.corpus.corpus import Corpus, Shard

_SPLIT_KEYS = {"train": 0, "validation": 1}


@dataclasses.dataclass(frozen=True)
class Stream:
    """One of the streams of a split."""

    index: int
    shards: tuple[tuple[int, Shard], ...]  # (index in the split, shard)
    rows: tuple[int, ...]  # number of rows of one visit to each shard
    key: tuple[int, ...]  # seed, split and phase, part of the key of every draw

    def order(self, epoch: int) -> np.ndarray:
        """Returns the order in which an epoch visits the shards."""
        random = pairs.CounterRandom(visits.ORDER, *self.key, epoch, self.index)
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
