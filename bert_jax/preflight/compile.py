"""Compiles the step of a phase ahead of time, and finds the largest batch that fits.

libtpu rejects a program that exceeds the memory of its chip, and reports how many bytes
the program needs. It skips code generation then, which takes most of the time.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from bert_jax.config import ExperimentConfig
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.preflight import hlo
from bert_jax.preflight.hlo import CompiledProgram
from bert_jax.training import compilation, optimizer
from bert_jax.training import step as step_lib

TILE = 8  # a device stores large batches in tiles of this many rows
MAX_SEARCH = 3  # programs of a search: two define a line, one confirms, one corrects
TOLERANCE = 1.05  # ratio of two batches that is not worth another compilation


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of compiling a step. All bytes are those of one device."""

    config: ExperimentConfig
    seconds: float  # compilation time
    arguments: dict[str, int]  # bytes of parameters, optimizer_moments, batch
    memory: dict[str, int] | None = None  # see hlo.memory; None: it does not fit
    program: CompiledProgram | None = None
    flops: float = 0.0  # reported by the compiler, which counts loop bodies once
    refusal: str = ""  # first line of the compiler's error
    needed_bytes: int = 0  # from the compiler's error

    @property
    def fits(self) -> bool:
        return self.memory is not None

    @property
    def total_bytes(self) -> int:
        return self.memory["total"] if self.memory else self.needed_bytes


def compile_step(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, phase_index: int
) -> Trial:
    """Compiles the train step of a phase for local devices or for a topology."""
    tx, schedule = optimizer.make_optimizer(config)
    graphdef, init = step_lib.init_state(config, tx)
    state = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=_layout(x, mesh)),
        jax.eval_shape(init),
    )
    batch_shapes = step_lib.batch_shapes(config.phases[phase_index])
    trees = {
        "parameters": state.params,
        "optimizer_moments": state.opt_state,
        "batch": sharding.abstract_batch(batch_shapes, mesh),
    }
    arguments = {name: hlo.device_bytes(tree) for name, tree in trees.items()}
    step = compilation.jit(step_lib.make_train_step(config, graphdef, tx, schedule))
    start = time.perf_counter()
    try:
        compiled = compilation.compile_phase(config, step, state, mesh, phase_index)
    except jax.errors.JaxRuntimeError as error:
        needed = hlo.refused_bytes(str(error))
        if needed is None:
            raise
        return Trial(
            config,
            time.perf_counter() - start,
            arguments,
            refusal=str(error).splitlines()[0],
            needed_bytes=needed[0],
        )
    costs: Any = compiled.cost_analysis()
    return Trial(
        config,
        time.perf_counter() - start,
        arguments,
        hlo.memory(compiled),
        CompiledProgram(compiled.as_text() or "", mesh.size),
        (costs or {}).get("flops", 0.0),
    )


def _layout(x: jax.ShapeDtypeStruct, mesh: jax.sharding.Mesh) -> NamedSharding:
    """Returns the sharding of an array of the state; scalars have none yet."""
    sharding: Any = x.sharding
    return NamedSharding(mesh, sharding.spec if sharding else jax.P())


def micro_batch(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, phase_index: int
) -> int:
    """Returns the number of sequences per device and microbatch."""
    rows = mesh_lib.batch_divisor(mesh) * config.accumulation_steps
    return config.phases[phase_index].global_batch_size // rows


def with_micro_batch(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    phase_index: int,
    sequences: int,
) -> ExperimentConfig:
    """Returns the config with another number of sequences per device and microbatch."""
    rows = mesh_lib.batch_divisor(mesh) * config.accumulation_steps
    phases = list(config.phases)
    phases[phase_index] = dataclasses.replace(
        phases[phase_index], global_batch_size=sequences * rows
    )
    return dataclasses.replace(config, phases=tuple(phases))


def largest_batch(
    sequences: int, trial: Trial, limit: int, compile_: Callable[[int], Trial]
) -> dict[int, Trial]:
    """Searches for the largest microbatch that fits, on a line through two programs.

    The search stops within 5% or after MAX_SEARCH programs. If none of them fits, it
    halves the batch until one does. Batches of 64 and more are multiples of TILE.

    Args:
      sequences: microbatch of the trial.
      trial: the program that was compiled already.
      limit: memory of one device.
      compile_: compiles the step for a number of sequences per device and microbatch.

    Returns:
      All trials by their microbatch, in the order of compilation.
    """
    tried = {sequences: trial}
    guess = sequences * limit / trial.total_bytes
    while True:
        best = largest_fit(tried)
        refused = min((n for n, each in tried.items() if not each.fits), default=None)
        if len(tried) > MAX_SEARCH:
            if best or not refused:
                return tried
            guess = refused / 2
        guess = max(guess, 1.0)
        if refused:
            guess = min(guess, refused / TOLERANCE)
        rows = int(guess) // TILE * TILE if guess >= 8 * TILE else int(guess)
        if rows < max(best * TOLERANCE, 1):
            return tried
        tried[rows] = compile_(rows)
        slope, at_zero = memory_line(tried)
        guess = (limit - at_zero) / slope if slope > 0 else rows / 2


def largest_fit(tried: dict[int, Trial]) -> int:
    """Returns the largest microbatch that fits, or 0."""
    return max((n for n, trial in tried.items() if trial.fits), default=0)


def memory_line(tried: dict[int, Trial]) -> tuple[float, float]:
    """Returns bytes per sequence, and bytes of an empty batch, by the last two trials.

    With one trial only, an empty batch takes the memory of the program's arguments.
    """
    *before, (n, last) = tried.items()
    if before:
        m, other = before[-1]
        slope = (last.total_bytes - other.total_bytes) / (n - m)
    else:
        slope = (last.total_bytes - sum(last.arguments.values())) / n
    return slope, last.total_bytes - slope * n


def accumulation_steps(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    largest: Sequence[int],
    at_least: int = 1,
) -> int | None:
    """Returns the smallest accumulation_steps with which all phases fit, or None.

    Args:
      config: config of the run.
      mesh: mesh of the run.
      largest: maximum sequences per device and microbatch, of each phase.
      at_least: minimum accumulation_steps.
    """
    divisor = mesh_lib.batch_divisor(mesh)
    rows = [phase.global_batch_size // divisor for phase in config.phases]
    return next(
        (
            parts
            for parts in range(at_least, math.gcd(*rows) + 1)
            if all(
                n % parts == 0 and n // parts <= most
                for n, most in zip(rows, largest, strict=True)
            )
        ),
        None,
    )
