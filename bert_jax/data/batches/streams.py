"""Streams: the shards that each host reads, in order."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pairs, visits
from bert_jax.data.corpus.corpus import Corpus, Shard

_SPLIT_KEYS = {"train": 0, "validation": 1}


@dataclasses.dataclass(frozen=True)
class Stream:
    """One of the fixed number of readers of a split.

    Attributes:
      index: which one, from 0.
      shards: those it visits, with their index in the split.
      rows: of one visit to each of them.
      key: part of the key of every draw: seed, split and phase.
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
        """Yields (epoch, index into shards, first row of that visit) from a row on."""
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
    """Deals the shards of a split to its streams: num_streams, or 1 for validation."""
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
