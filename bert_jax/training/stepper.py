"""The steps of a run: their batches, waiting for compilation, and replays."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import multihost, sharding
from bert_jax.errors import CorruptError
from bert_jax.model.parameters import path_name
from bert_jax.monitoring import report, throughput
from bert_jax.monitoring.monitor import Metrics, Monitor
from bert_jax.monitoring.profile import Profiler
from bert_jax.phases import Position, Skips, runs_of_batches
from bert_jax.training import nonfinite
from bert_jax.training.compilation import CompiledSteps
from bert_jax.training.step import Batch, TrainState


@dataclasses.dataclass(frozen=True)
class Stepper:
    """The corpus of a run and its compiled step.

    Attributes:
      replayed: the jitted step without donation, for config.guard.replay_every_steps.
    """

    config: ExperimentConfig
    corpus: Corpus
    mesh: jax.sharding.Mesh
    compiled: CompiledSteps
    replayed: Callable[..., Any]
    monitor: Monitor

    def open_log(
        self, workdir: str, first_step: int, position: Position, began: float
    ) -> None:
        """Opens the log of the steps after `first_step`; see `Monitor.open_log`."""
        config, monitor = self.config, self.monitor
        records = workdir if multihost.is_first() else None
        guard = nonfinite.Guard(
            config, self.corpus, position, first_step, records, monitor.print
        )
        monitor.open_log(
            workdir,
            first_step,
            config.num_steps,
            config.log_every_steps,
            throughput.Throughput(config),
            report.format_steps,
            guard.check,
            began,
        )

    def take(
        self,
        profiler: Profiler,
        step: int,
        phase_index: int,
        state: TrainState,
        *arguments: Any,
    ) -> tuple[TrainState, Metrics]:
        """Takes step number `step`, counted from 1; replays it before if that is due.

        Args:
          state: the state before the step; it is donated.
          arguments: the batch, and the factor of the rate with a budget.
        """
        if not self.compiled.is_ready(phase_index):
            with self.monitor.activity("compiling"):
                self.compiled.get(phase_index)
        every_steps = self.config.guard.replay_every_steps
        if every_steps and step % every_steps == 0:
            with self.monitor.activity("replaying"):
                replay(self.replayed, step, state, *arguments)
        train_step = self.compiled.get(phase_index)
        return profiler.step(step, train_step, state, *arguments)


def training_batches(
    corpus: Corpus,
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    first_step: int,
    skips: Skips,
) -> Iterator[tuple[int, int, Batch]]:
    """Yields (step, phase, batch) for every step after `first_step`.

    Each process reads the rows of its own devices of the mesh. A batch is on the
    devices and has the shapes of `pipeline.batch_shapes`. The next batch is transferred
    while a step runs.
    """
    host, num_hosts = mesh_lib.host_part(mesh, jax.process_index())

    def placed() -> Iterator[tuple[int, Batch]]:
        for phase_index, first_batch, num_batches in runs_of_batches(
            config, first_step, skips
        ):
            batches = pipeline.batches(
                corpus,
                config,
                split="train",
                seed=config.seed,
                phase_index=phase_index,
                first_step=first_batch,
                host=host,
                num_hosts=num_hosts,
            )
            for batch in itertools.islice(batches, num_batches):
                yield phase_index, sharding.place_batch(batch, mesh)

    ahead = placed()
    current = next(ahead, None)
    for step in itertools.count(first_step + 1):
        if current is None:
            return
        following = next(ahead, None)
        yield step, *current
        current = following


def replay(
    train_step: Callable[..., Any], step: int, state: TrainState, *arguments: Any
) -> None:
    """Detects faulty chips: takes a step twice and compares the results bit by bit.

    Such faults are rare and silent, and spread to all chips with the next gradient. The
    results take the memory of two more states on the devices, and are discarded.
    """
    first = jax.block_until_ready(train_step(state, *arguments))
    second = jax.block_until_ready(train_step(state, *arguments))
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
    """Returns the paths of the arrays that differ on any device of this process."""
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
