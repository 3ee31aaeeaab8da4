"""Selects rows: those of each training step, and those of a whole data set by length.

The rows of a step depend on its number alone, so a run can resume at any step. Epochs
are concatenated: a batch may hold the end of one epoch and the beginning of the next,
and only the last epoch may drop a few rows at its end.

Shapes: N row of the set, B row of the batch, T token.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.finetuning.tasks.base import Features
from bert_jax.model import heads, int8

# Number of batches whose rows are sorted together, as in transformers' group_by_length.
GROUP_BATCHES = 50


class Shuffled:
    """Visits every row once per epoch; each epoch has its own random order."""

    def __init__(
        self,
        num_rows: int,
        batch_size: int,
        seed: int,
        lengths_N: np.ndarray | None = None,
    ):
        """With `lengths_N`, the tokens of each row, a batch has rows of similar length.

        Rows are shuffled, then sorted by length within groups of GROUP_BATCHES batches;
        the batches of a group are in random order.
        """
        self._num_rows, self._batch_size, self._seed = num_rows, batch_size, seed
        self._lengths_N = lengths_N
        # A batch may hold rows of two epochs.
        self._order_of = functools.lru_cache(maxsize=2)(self._order)

    def of_step(self, step: int) -> np.ndarray:
        """Returns int64[B], the rows of the step after `step` steps."""
        first, N = step * self._batch_size, self._num_rows
        last = first + self._batch_size - 1
        parts = [
            self._order_of(epoch)[max(first - epoch * N, 0) : last + 1 - epoch * N]
            for epoch in range(first // N, last // N + 1)
        ]
        return np.concatenate(parts)

    def _order(self, epoch: int) -> np.ndarray:
        rng = np.random.default_rng((self._seed, epoch))
        order_N = rng.permutation(self._num_rows)
        if self._lengths_N is None:
            return order_N
        # The first rows of an epoch complete the last batch of the previous epoch.
        begin = -epoch * self._num_rows % self._batch_size
        size = GROUP_BATCHES * self._batch_size
        parts = [order_N[:begin]]
        for start in range(begin, self._num_rows, size):
            rows = order_N[start : start + size]
            rows = rows[np.argsort(self._lengths_N[rows], kind="stable")]
            whole = len(rows) // self._batch_size * self._batch_size
            grouped = rows[:whole].reshape(-1, self._batch_size)
            parts += [rng.permutation(grouped).reshape(-1), rows[whole:]]
        return np.concatenate(parts)


def in_order(num_rows: int, batch_size: int) -> Iterator[np.ndarray]:
    """Yields int64[B], all rows in order; the last batch is padded with -1."""
    for first in range(0, num_rows, batch_size):
        rows_B = np.arange(first, first + batch_size)
        yield np.where(rows_B < num_rows, rows_B, -1)


def by_length(lengths_N: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yields int64[B], all rows from short to long; the last batch is padded with -1.

    A batch costs as much as if all its rows were as long as the longest.
    """
    order_N = np.argsort(lengths_N, kind="stable")
    for places_B in in_order(len(order_N), batch_size):
        yield np.where(places_B >= 0, order_N[places_B], -1)


def place(
    batch: dict[str, np.ndarray], part: tuple[int, int], mesh: jax.sharding.Mesh
) -> dict[str, jax.Array]:
    """Places a batch on the devices.

    Every process passes all rows, because the longest row of the whole batch determines
    its length; `part` is the index and number of its parts, from `mesh.host_part`.
    """
    index, num_parts = part
    rows = len(batch["input_ids"]) // num_parts
    mine = slice(index * rows, (index + 1) * rows)
    return sharding.place_batch({name: a[mine] for name, a in batch.items()}, mesh)


def _logits(model: Any, batch: dict[str, jax.Array], dtype: jnp.dtype) -> jax.Array:
    return model(batch, dropout_key=None, dtype=dtype).logits


class Batching(NamedTuple):
    """The shape of the batches of a model, its activations' dtype and its mesh."""

    max_length: int  # length of the longest rows
    batch_size: int  # rows of a batch, rounded up to divide over the mesh
    dtype: jnp.dtype  # of activations
    mesh: jax.sharding.Mesh


class Predictor:
    """Computes outputs of rows; all data sets share one program per row length."""

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        batching: Batching,
        outputs: Callable[..., jax.Array] = _logits,
        names: Sequence[str] = heads.INPUTS,
    ):
        """Compiles nothing yet.

        Args:
          outputs: (model, batch, dtype) -> float32[B, ...].
          names: the arrays of the batch that `outputs` reads.
        """
        self._max_length, size, dtype, self._mesh = batching
        divisor = mesh_lib.batch_divisor(self._mesh)
        self._batch_size, self._names = -(-size // divisor) * divisor, names
        self._part = mesh_lib.host_part(self._mesh, jax.process_index())

        def forward(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
            model: Any = nnx.merge(graphdef, int8.dequantize(params))
            found = outputs(model, batch, dtype)
            # Each process reads the rows of all devices.
            return found if jax.process_count() == 1 else jax.reshard(found, jax.P())

        self._forward = jax.jit(forward)

    def __call__(
        self,
        params: Any,
        features: Features,
        on_rows: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Returns float32[N, ...], the outputs of all rows, the same in every process.

        The parameters may be quantized. `on_rows` is called after each batch with the
        number of rows in it.
        """
        whole = np.zeros(0)
        for rows_B, found in self.batches(params, features):
            if found.ndim == 3:  # T is that of the longest row of the batch
                missing = self._max_length - found.shape[1]
                found = np.pad(found, [(0, 0), (0, missing), (0, 0)])
            if not whole.size:
                whole = np.zeros((len(features), *found.shape[1:]), found.dtype)
            whole[rows_B] = found
            if on_rows is not None:
                on_rows(len(rows_B))
        return whole

    def batches(
        self, params: Any, features: Features
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the rows of each batch, int64[B], and their outputs, float32[B, ...].

        The batches are those of `by_length`, without the rows that pad them.
        """
        for rows_B in by_length(features.num_tokens(), self._batch_size):
            batch = features.batch(rows_B)
            batch = {name: batch[name] for name in self._names}
            placed = place(batch, self._part, self._mesh)
            found = np.asarray(jax.device_get(self._forward(params, placed)))
            yield rows_B[rows_B >= 0], found[rows_B >= 0]
