"""Which rows a step trains on: a function of the step, so that a run goes on anywhere.

Epochs follow each other without a break: a batch may hold the end of one and the
beginning of the next, and only the last epoch may lose a few rows at its end.

Shapes: N row of the set, B row of the batch.
"""

from collections.abc import Iterator

import jax
import numpy as np

from bert_jax.distributed import sharding

GROUPED = 50  # batches; as many as transformers' group_by_length sorts together


def num_steps(num_rows: int, num_epochs: int, batch_size: int) -> int:
    """Returns the steps of a run, at least one.

    Source: google-research/bert run_classifier.py, num_train_steps.
    """
    return max(num_rows * num_epochs // batch_size, 1)


class Shuffled:
    """All rows once an epoch, in an order of its own."""

    def __init__(
        self,
        num_rows: int,
        batch_size: int,
        seed: int,
        lengths_N: np.ndarray | None = None,
    ):
        """Sets up.

        Args:
          num_rows: N.
          batch_size: B.
          seed: of the orders.
          lengths_N: tokens of each row, if batches shall be of rows about as long as
            each other, and so have few places without a token. Rows are random to
            within GROUPED batches, these are sorted, and come in a random order.
        """
        self._num_rows, self._batch_size, self._seed = num_rows, batch_size, seed
        self._lengths_N = lengths_N
        self._orders: dict[int, np.ndarray] = {}  # of the last epochs asked for

    def of_step(self, step: int) -> np.ndarray:
        """Returns int64[B], the rows of the step after `step` steps."""
        first = step * self._batch_size
        places_B = np.arange(first, first + self._batch_size)
        epochs_B = places_B // self._num_rows
        rows_B = np.empty(self._batch_size, np.int64)
        orders = {epoch: self._order(epoch) for epoch in np.unique(epochs_B).tolist()}
        for epoch, order_N in orders.items():
            of_epoch = epochs_B == epoch
            rows_B[of_epoch] = order_N[places_B[of_epoch] % self._num_rows]
        self._orders = orders
        return rows_B

    def _order(self, epoch: int) -> np.ndarray:
        if epoch in self._orders:
            return self._orders[epoch]
        rng = np.random.default_rng((self._seed, epoch))
        order_N = rng.permutation(self._num_rows)
        if self._lengths_N is None:
            return order_N
        # An epoch begins in the batch in which the one before it ends.
        begin = -epoch * self._num_rows % self._batch_size
        size = GROUPED * self._batch_size
        parts = [order_N[:begin]]
        for start in range(begin, self._num_rows, size):
            rows = order_N[start : start + size]
            rows = rows[np.argsort(self._lengths_N[rows], kind="stable")]
            whole = len(rows) // self._batch_size * self._batch_size
            grouped = rows[:whole].reshape(-1, self._batch_size)
            parts += [rng.permutation(grouped).reshape(-1), rows[whole:]]
        return np.concatenate(parts)


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
      part: from `mesh.host_part`, of this process.
      mesh: of the run.
    """
    index, num_parts = part
    rows = len(batch["input_ids"]) // num_parts
    mine = slice(index * rows, (index + 1) * rows)
    return sharding.place_batch({name: a[mine] for name, a in batch.items()}, mesh)
