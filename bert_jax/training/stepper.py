"""The steps of a run: batches, waiting for compilation, replays and traces."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from bert_jax import storage
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import multihost, sharding
from bert_jax.errors import CorruptError
from bert_jax.model.parameters import leaves
from bert_jax.monitoring import terminal, throughput
from bert_jax.monitoring.monitor import Metrics, Monitor
from bert_jax.phases import Position, Skips, runs_of_batches
from bert_jax.training import rollbacks
from bert_jax.training.compilation import CompiledSteps
from bert_jax.training.step import Batch, TrainState

T = TypeVar("T")


class Profiler(contextlib.ExitStack):
    """Writes a trace of config.profile for TensorBoard (xprof) to plugins/profile.

    As a context manager, it stops a trace that an error or an interruption cuts off.
    """

    def __init__(
        self, steps: Sequence[int], workdir: str, first_step: int, monitor: Monitor
    ):
        """Prepares for the step after `first_step`; `steps` is config.profile."""
        super().__init__()
        self._workdir, self._monitor = workdir, monitor
        self._steps = range(steps[0], sum(steps)) if steps else range(0)
        if self._steps and self._steps[0] <= first_step:
            monitor.print(
                f"config.profile: no trace, because step {self._steps[0]:,} was taken"
                " before this call"
            )
            self._steps = range(0)

    def step(
        self, step: int, train_step: Callable[..., T], state: Any, *arguments: Any
    ) -> T:
        """Returns train_step(state, *arguments), traced if config.profile has it."""
        if step not in self._steps:
            return train_step(state, *arguments)
        if step == self._steps[0]:
            jax.block_until_ready(state)  # the steps before are not in the trace
            self._start()
        is_last = step == self._steps[-1]
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            result = train_step(state, *arguments)
            # A CPU finishes each step before the next one, see Monitor.step.
            if is_last or jax.default_backend() == "cpu":
                jax.block_until_ready(result)
        if is_last:
            self.close()
        return result

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # it slows the steps down
        self._directory = self._workdir
        if storage.is_remote(self._workdir):
            self._directory = storage.scratch_directory()
        with self._monitor.activity("profiling"):
            jax.profiler.start_trace(self._directory, profiler_options=options)
        self._monitor.stop_clock()
        self.callback(self._stop)

    def _stop(self) -> None:
        with self._monitor.activity("profiling"):
            jax.profiler.stop_trace()
            if self._directory != self._workdir:
                storage.upload(self._directory, self._workdir)
        self._monitor.stop_clock()
        self._monitor.print(
            f"config.profile: the trace is in {self._workdir}/plugins/profile; see it"
            f" with pip install xprof and tensorboard --logdir={self._workdir}"
        )


@dataclasses.dataclass(frozen=True)
class Stepper:
    """The corpus of a run and its compiled step."""

    config: ExperimentConfig
    corpus: Corpus
    mesh: jax.sharding.Mesh
    compiled: CompiledSteps
    replayed: Callable[..., Any]  # the jitted step without donation, for replays
    monitor: Monitor

    def open_log(
        self, workdir: str, first_step: int, position: Position, began: float
    ) -> None:
        config, monitor = self.config, self.monitor
        records = workdir if multihost.is_first() else None
        guard = rollbacks.Guard(
            config, self.corpus, position, first_step, records, monitor.print
        )
        monitor.open_log(
            workdir,
            first_step,
            config.num_steps,
            config.log_every_steps,
            functools.partial(throughput.rates, config),
            terminal.format_steps,
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

        The state is donated. The arguments are the batch and, with a budget, the factor
        of the rate.
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

    ahead = itertools.pairwise(itertools.chain(placed(), [None]))
    for step, (current, _) in enumerate(ahead, start=first_step + 1):
        assert current
        yield step, *current


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
    return [
        name
        for name, is_equal in leaves(_are_equal(a, b)).items()
        # Each device compares its own copy of a replicated array.
        if not all(bool(shard.data) for shard in is_equal.addressable_shards)
    ]


@jax.jit
def _are_equal(a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.all(_bits(x) == _bits(y)), a, b)


def _bits(x: jax.Array) -> jax.Array:
    return x.view(f"uint{8 * x.dtype.itemsize}")
