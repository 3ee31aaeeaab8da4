"""Which rows a step trains on: a function of the step, so that a run goes on anywhere.

Epochs follow each other without a break: a batch may hold the end of one and the
beginning of the next, and only the last epoch may lose a few rows at its end.

Shapes: N row of the set, B row of the batch.
"""

import functools
from collections.abc import Iterator

import jax
import numpy as np

from bert_jax import sharding


def num_steps(num_rows: int, num_epochs: int, batch_size: int) -> int:
    """Returns the steps of a run, at least one.

    Source: google-research/bert run_classifier.py, num_train_steps.
    """
    return max(num_rows * num_epochs // batch_size, 1)


def of_step(num_rows: int, batch_size: int, step: int, seed: int) -> np.ndarray:
    """Returns int64[B], the rows of the step after `step` steps."""
    places_B = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs_B = places_B // num_rows
    rows_B = np.empty(batch_size, np.int64)
    for epoch in np.unique(epochs_B):
        of_epoch = epochs_B == epoch
        order_N = _order(num_rows, seed, int(epoch))
        rows_B[of_epoch] = order_N[places_B[of_epoch] % num_rows]
    return rows_B


def in_order(num_rows: int, batch_size: int) -> Iterator[np.ndarray]:
    """Yields int64[B], all rows in their order; the last batch is filled up by -1."""
    for first in range(0, num_rows, batch_size):
        rows_B = np.arange(first, first + batch_size)
        yield np.where(rows_B < num_rows, rows_B, -1)


def place(
    batch: dict[str, np.ndarray], part: tuple[int, int], mesh: jax.sharding.Mesh
) -> dict[str, jax.Array]:
    """Returns a batch on the devices.

    Args:
      batch: [B, ...], all rows in every process: what they need decides its length.
      part: from `sharding.host_part`, of this process.
      mesh: of the run.
    """
    index, num_parts = part
    rows = len(batch["input_ids"]) // num_parts
    mine = slice(index * rows, (index + 1) * rows)
    return sharding.place_batch({name: a[mine] for name, a in batch.items()}, mesh)


@functools.lru_cache(maxsize=2)  # a batch may hold two epochs
def _order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(num_rows)
