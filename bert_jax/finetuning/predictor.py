"""Computes the logits of a whole data set, batched by row length.

Shapes: N row of the set, B row of the batch, T token.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.distributed import mesh as mesh_lib
from bert_jax.finetuning.data import batches
from bert_jax.finetuning.tasks.base import Features
from bert_jax.model import heads, int8


class Predictor:
    """Computes logits of rows; all data sets share one program per row length."""

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        *,
        length: int,
        batch_size: int,
        dtype: jnp.dtype,
        mesh: jax.sharding.Mesh,
    ):
        """Initializes the predictor.

        Args:
          length: T, tokens of the longest rows.
          batch_size: rows per step, over all devices; rounded up to a multiple of the
            mesh's batch divisor.
        """
        self._batch_size = batches.rounded_up(batch_size, mesh)
        self._length, self._mesh = length, mesh
        self._part = mesh_lib.host_part(mesh, jax.process_index())

        def forward(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
            model: Any = nnx.merge(graphdef, int8.dequantize(params))
            logits = model(batch, dropout_key=None, dtype=dtype).logits
            return jax.reshard(logits, jax.P())  # on all devices

        self._forward = jax.jit(forward)

    def __call__(
        self,
        params: Any,
        features: Features,
        on_rows: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Computes the logits of all rows, in their order.

        Args:
          params: parameters of the model with its head; they may be quantized.
          on_rows: called after each batch with the number of rows in it.

        Returns:
          float32[N, ...], the same in every process.
        """
        parts, order = [], []
        for rows_B in batches.by_length(features.num_tokens(), self._batch_size):
            batch = features.batch(rows_B)
            placed = batches.place(
                {name: batch[name] for name in heads.INPUTS}, self._part, self._mesh
            )
            logits = np.asarray(jax.device_get(self._forward(params, placed)))
            parts.append(self._pad_to_length(logits)[rows_B >= 0])
            order.append(rows_B[rows_B >= 0])
            if on_rows is not None:
                on_rows(len(parts[-1]))
        logits = np.concatenate(parts)
        in_order = np.empty_like(logits)
        in_order[np.concatenate(order)] = logits
        return in_order

    def _pad_to_length(self, logits: np.ndarray) -> np.ndarray:
        """Pads token logits with zeros from the batch's length to the full length."""
        if logits.ndim < 3:
            return logits
        missing = self._length - logits.shape[1]
        return np.pad(logits, ((0, 0), (0, missing), (0, 0)))
