"""Compiles the step of a phase ahead of time, and finds the largest batch that fits.

libtpu rejects a program that exceeds the memory of its chip, and reports how many bytes
the program needs. It then skips code generation, which takes most of the compile time.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.preflight import hlo
from bert_jax.training import compilation, optimizer
from bert_jax.training import step as step_lib

TILE = 8  # a device stores large batches in tiles of this many rows
MAX_SEARCH = 4  # programs of a search; libtpu overstates the memory of a rejected one
TOLERANCE = 1.05  # ratio of two batches that is not worth another compilation


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of compiling a step. All bytes are those of one device."""

    config: ExperimentConfig
    sequences: int  # in a microbatch, per device
    facts: dict[str, Any]  # memory and collectives; needed_bytes if it does not fit
    program: hlo.CompiledProgram | None = None  # None if it does not fit

    @property
    def fits(self) -> bool:
        return self.program is not None

    @property
    def total_bytes(self) -> int:
        memory = self.facts.get("memory")
        return memory["total"] if memory else self.facts["needed_bytes"]


def compile_step(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, phase_index: int
) -> Trial:
    """Compiles the train step of a phase for local devices or for a topology."""
    tx, schedule = optimizer.make_optimizer(config)
    with jax.set_mesh(mesh):  # a thread has its own mesh
        graphdef, init = step_lib.init_state(config, tx)
        state = step_lib.abstract_state(init, mesh)
        step = compilation.jit(step_lib.make_train_step(config, graphdef, tx, schedule))
    phase = config.phases[phase_index]
    batch = sharding.abstract_batch(pipeline.batch_shapes(phase), mesh)
    facts: dict[str, Any] = {
        "arguments": {
            "parameters": hlo.device_bytes(state.params),
            "optimizer_moments": hlo.device_bytes(state.opt_state),
            "batch": hlo.device_bytes(batch),
        }
    }
    program, start = None, time.perf_counter()
    try:
        compiled = compilation.compile_phase(config, step, state, mesh, phase_index)
    except jax.errors.JaxRuntimeError as error:
        needed = hlo.refused_bytes(str(error))
        if needed is None:
            raise
        facts["needed_bytes"], _ = needed
    else:
        program = hlo.CompiledProgram(compiled.as_text() or "", mesh.size)
        facts["memory"] = hlo.memory(compiled)
        facts["collectives"] = list(map(dataclasses.asdict, program.collectives))
    facts["seconds_to_compile"] = time.perf_counter() - start
    rows = mesh_lib.batch_divisor(mesh) * config.accumulation_steps
    return Trial(config, phase.global_batch_size // rows, facts, program)


def with_batch(
    config: ExperimentConfig, phase_index: int, global_batch_size: int
) -> ExperimentConfig:
    """Returns the config with another batch in one phase."""
    phases = list(config.phases)
    phases[phase_index] = dataclasses.replace(
        phases[phase_index], global_batch_size=global_batch_size
    )
    return dataclasses.replace(config, phases=tuple(phases))


def largest_batch(
    trial: Trial, limit: int, compile_: Callable[[int], Trial]
) -> Trial | None:
    """Searches for the largest microbatch that fits, with memory linear in its size.

    The search stops within 5% or after MAX_SEARCH programs. If none of them fits, it
    halves the batch until one does. Batches of 64 and more are multiples of TILE.

    Args:
      trial: a microbatch that was compiled already.
      limit: memory of one device, in bytes.
      compile_: compiles the step for a number of sequences.
    """
    tried = {trial.sequences: trial}
    guess = trial.sequences * limit / trial.total_bytes
    while True:
        best = max((n for n, each in tried.items() if each.fits), default=0)
        rejected = min((n for n, each in tried.items() if not each.fits), default=0)
        if len(tried) > MAX_SEARCH:
            guess = best or rejected / 2
        guess = max(guess, 1.0)
        if rejected:
            guess = min(guess, rejected / TOLERANCE)
        rows = int(guess) // TILE * TILE if guess >= 8 * TILE else int(guess)
        if rows < max(best * TOLERANCE, 1):
            return tried.get(best)
        tried[rows] = compile_(rows)
        (n, before), (m, last) = list(tried.items())[-2:]
        slope = (last.total_bytes - before.total_bytes) / (m - n)
        # The slope between two rejected programs may be negative.
        halfway = (best + m) / 2
        guess = m + (limit - last.total_bytes) / slope if slope > 0 else halfway
