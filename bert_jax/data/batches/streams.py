"""Streams: the order in which the shards of a split are read."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pairs, visits
from bert_jax.data.corpus.corpus import Corpus, Shard

_SPLIT_KEYS = {"train": 0, "validation": 1}


@dataclasses.dataclass(frozen=True)
class Stream:
    """One of the streams of a split.

    Attributes:
      index: index of the stream.
      shards: (index in the split, shard) of each shard of the stream.
      rows: number of rows of one visit to each shard.
      key: seed, split and phase, which are part of the key of every draw.
    """

    index: int
    shards: tuple[tuple[int, Shard], ...]
    rows: tuple[int, ...]
    key: tuple[int, ...]

    def order(self, epoch: int) -> np.ndarray:
        """Returns the order in which an epoch visits the shards."""
        random = pairs.CounterRandom(visits.ORDER, *self.key, epoch, self.index)
        return random.order(len(self.shards))

    def visits(self, first_row: int) -> Iterator[tuple[int, int, int]]:
        """Yields (epoch, index into shards, first row of the visit), from `first_row`.

        Only the first visit can start at a row other than 0.
        """
        epoch, row = divmod(first_row, sum(self.rows))
        while True:
            for i in self.order(epoch):
                if row < self.rows[i]:
                    yield epoch, int(i), row
                row = max(0, row - self.rows[i])
            epoch += 1


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
