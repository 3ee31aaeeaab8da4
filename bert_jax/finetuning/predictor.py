"""Rows -> logits of all of them, by a tuned model on its mesh.

Shapes: N row of the set, B row of the batch, T token.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.distributed import mesh as mesh_lib
from bert_jax.finetuning import step as tuning_step
from bert_jax.finetuning.data import batches
from bert_jax.finetuning.task import Features
from bert_jax.model import heads


class Predictor:
    """Compiles a program for each length of rows, once for all sets."""

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        *,
        length: int,
        batch_size: int,
        dtype: jnp.dtype,
        mesh: jax.sharding.Mesh,
    ):
        """Sets up.

        Args:
          graphdef: of a head's module.
          length: T, of the longest rows.
          batch_size: rows of a step, over all devices; made a multiple of what the mesh
            needs.
          dtype: of the computation.
          mesh: of the parameters.
        """
        divisor = mesh_lib.batch_divisor(mesh)
        self._batch_size = -(-batch_size // divisor) * divisor
        self._length, self._mesh = length, mesh
        self._part = mesh_lib.host_part(mesh, jax.process_index())
        self._forward = tuning_step.make_forward(graphdef, dtype)

    def __call__(
        self,
        params: Any,
        features: Features,
        on_rows: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Returns float32[N, ...], the same in every process.

        Rows of a batch are about as long as each other: one long row among short ones
        would cost as much as if all were long.

        Args:
          params: of the head's module.
          features: the rows.
          on_rows: called after each batch with the number of its rows.
        """
        found = []
        order_N = np.argsort(features.num_tokens(), kind="stable")
        for places_B in batches.in_order(len(features), self._batch_size):
            rows_B = np.where(places_B >= 0, order_N[places_B], -1)
            batch = features.batch(rows_B)
            placed = batches.place(
                {name: batch[name] for name in heads.INPUTS}, self._part, self._mesh
            )
            logits = np.asarray(jax.device_get(self._forward(params, placed)))
            found.append(self._widened(logits)[rows_B >= 0])
            if on_rows is not None:
                on_rows(len(found[-1]))
        logits = np.concatenate(found)
        in_place = np.empty_like(logits)
        in_place[order_N] = logits
        return in_place

    def _widened(self, logits: np.ndarray) -> np.ndarray:
        """Returns logits of tokens with zeros for places that were cut off."""
        if logits.ndim < 3:
            return logits
        missing = self._length - logits.shape[1]
        return np.pad(logits, ((0, 0), (0, missing), (0, 0)))
