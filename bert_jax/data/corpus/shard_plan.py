"""Assigns a piece of each run to each shard, before shards are written."""

import collections
import dataclasses
import hashlib
from concurrent import futures

import numpy as np

from bert_jax import storage
from bert_jax.config import DataConfig
from bert_jax.data.corpus import key_ranges, sorted_runs
from bert_jax.data.tokenizers import unknown_tokens


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """The shards of a corpus and the positions of their documents in the runs.

    Attributes:
      files: file names of the shards.
      runs: the runs.
      positions: int64[runs, shards + 1, 4], see `sorted_runs.positions`.
      counts: sum of the counts of all runs.
      batches: number of documents with text in each batch, by its name.
    """

    files: list[str]
    runs: list[sorted_runs.Run]
    positions: np.ndarray
    counts: collections.Counter[str]
    batches: dict[str, int]

    def pieces(self, shard: int) -> np.ndarray:
        """Returns the bounds of each run's piece of a shard, int64[runs, 2, 4]."""
        return self.positions[:, shard : shard + 2]

    def totals(self) -> np.ndarray:
        """Returns the numbers of documents, sentences, tokens and further copies.

        A document that is in several runs is counted once per run.

        Returns:
          int64[shards, 4].
        """
        return np.diff(self.positions.sum(axis=0), axis=0)

    def digest(self) -> str:
        """Returns a SHA-256 that identifies the documents of all shards."""
        return hashlib.sha256("\n".join(sorted(self.batches)).encode()).hexdigest()


def make(paths: list[str], data: DataConfig, id_dtype: np.dtype) -> ShardPlan:
    """Reads the keys of all runs and assigns the documents to shards."""
    with futures.ThreadPoolExecutor(storage.STAT_THREADS) as pool:
        runs = list(pool.map(lambda path: sorted_runs.Run(path, id_dtype), paths))
    counts: collections.Counter[str] = collections.Counter()
    batches: dict[str, int] = {}
    for run in runs:
        counts.update(run.header.counts)
        batches.update(run.header.batches)
    num_tokens = unknown_tokens.num_tokens(counts)
    num_validation = key_ranges.num_validation_shards(data, num_tokens, id_dtype)
    ranges = key_ranges.KeyRanges(data, num_validation)
    edges = ranges.inner_edges
    with futures.ThreadPoolExecutor(storage.TRANSFER_THREADS) as pool:
        rows = pool.map(lambda run: sorted_runs.positions(run.records(), edges), runs)
        positions = np.stack(list(rows))
    return ShardPlan(ranges.files, runs, positions, counts, batches)
