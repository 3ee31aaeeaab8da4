"""Detects faulty chips: repeats a step and compares the results bit by bit.

Such faults are rare and silent, and spread to all chips with the next gradient.
"""

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ExperimentConfig
from bert_jax.distributed import multihost
from bert_jax.errors import CorruptError
from bert_jax.model.parameters import path_name
from bert_jax.training import compilation
from bert_jax.training import step as step_lib


class Replay:
    """Repeats some steps twice and discards the results.

    A check needs memory for two more states on the devices.
    """

    def __init__(self, config: ExperimentConfig, train_step: Any):
        """Prepares to replay every config.guard.replay_every_steps steps, 0 for none.

        Args:
          config: config.guard is read.
          train_step: from `step.make_train_step`; its state is not donated here.
        """
        self._every_steps = config.guard.replay_every_steps
        # With the options of the steps that it checks.
        self._train_step = jax.jit(
            train_step, compiler_options=compilation.compiler_options()
        )

    def is_due(self, step: int) -> bool:
        """Returns whether step number `step`, counted from 1, is replayed."""
        return self._every_steps > 0 and step % self._every_steps == 0

    def check(
        self,
        step: int,
        state: step_lib.TrainState,
        batch: step_lib.Batch,
        *others: Any,
    ) -> None:
        """Takes a step twice and compares the results.

        Args:
          step: number of steps taken, including this one.

        Raises:
          CorruptError: when the results differ in any bit.
        """
        first = jax.block_until_ready(self._train_step(state, batch, *others))
        second = jax.block_until_ready(self._train_step(state, batch, *others))
        names = differing_arrays(first, second)
        if multihost.any_process(bool(names)):
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            where = f"{len(names)} arrays differ: {shown}" if names else "no difference"
            raise CorruptError(
                f"step {step:,} gave different bits when it was repeated (process"
                f" {jax.process_index()}: {where}), so a chip or its memory is faulty;"
                " the step is not saved; rerun the same command on other hardware to"
                " resume from the last checkpoint"
            )


def differing_arrays(a: Any, b: Any) -> list[str]:
    """Returns the paths of the arrays that differ on any device of this process.

    Args:
      a, b: trees of arrays of the same shapes, dtypes and shardings.
    """
    are_equal = _are_equal(a, b)
    return [
        path_name(path)
        for path, is_equal in jax.tree_util.tree_leaves_with_path(are_equal)
        # Each device compares its own copy of a replicated array.
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
