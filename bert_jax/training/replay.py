"""Steps taken twice: a chip that computes wrong is found by its bits.

Faults of that kind are rare, silent, and spread to all chips with the first gradient.
"""

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ExperimentConfig
from bert_jax.distributed import multihost
from bert_jax.errors import CorruptError
from bert_jax.model.parameters import path_name
from bert_jax.training import step as step_lib


class Replay:
    """Takes some steps twice more, without keeping what they give.

    Needs room for two more states on the devices while it looks.
    """

    def __init__(self, config: ExperimentConfig, train_step: Any):
        """Prepares.

        Args:
          config: of the run.
          train_step: from `step.make_train_step`; it keeps its argument here.
        """
        self._every_steps = config.guard.replay_every_steps
        self._train_step = jax.jit(train_step)

    def is_due(self, step: int) -> bool:
        return self._every_steps > 0 and step % self._every_steps == 0

    def check(
        self, step: int, state: step_lib.TrainState, batch: step_lib.Batch
    ) -> None:
        """Compares two goes at the step that brings the count to `step`.

        Raises:
          CorruptError: when they differ in a single bit.
        """
        first = jax.block_until_ready(self._train_step(state, batch))
        second = jax.block_until_ready(self._train_step(state, batch))
        names = differing(first, second)
        if multihost.any_process(bool(names)):
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            where = f"here in {len(names)} arrays: {shown}" if names else "elsewhere"
            raise CorruptError(
                f"step {step:,} taken twice gave other bits (process"
                f" {jax.process_index()}: {where}): a chip or its memory is faulty;"
                " nothing of this step is saved; go on from the last checkpoint, on"
                " other hardware"
            )


def differing(a: Any, b: Any) -> list[str]:
    """Returns the paths of the arrays whose bits are not the same, on any device here.

    Args:
      a, b: trees of arrays of the same shapes, dtypes and layouts.
    """
    are_equal = _are_equal(a, b)
    return [
        path_name(path)
        for path, is_equal in jax.tree_util.tree_leaves_with_path(are_equal)
        # Every device has an answer of its own where the array is a copy.
        if not all(bool(shard.data) for shard in is_equal.addressable_shards)
    ]


@jax.jit
def _are_equal(a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.all(_bits(x) == _bits(y)), a, b)


def _bits(x: jax.Array) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    kind = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(x, kind)
