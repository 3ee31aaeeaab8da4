"""Compiles the step of a phase ahead of time, and finds the largest batch that fits.

libtpu rejects a program that exceeds the memory of its chip, and reports how many bytes
the program needs. It skips code generation then, which takes most of the time.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.preflight import hlo
from bert_jax.training import compilation, optimizer
from bert_jax.training import step as step_lib

TILE = 8  # a device stores large batches in tiles of this many rows
MAX_SEARCH = 3  # programs of a search: two define a line, one confirms, one corrects
TOLERANCE = 1.05  # ratio of two batches that is not worth another compilation


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of compiling a step. All bytes are those of one device."""

    config: ExperimentConfig
    facts: dict[str, Any]  # of the program, or its refusal and needed_bytes
    program: hlo.CompiledProgram | None = None  # None: it does not fit

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
    graphdef, init = step_lib.init_state(config, tx)

    def on_mesh(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        found: Any = x.sharding  # scalars have none yet
        layout = jax.sharding.NamedSharding(mesh, found.spec if found else jax.P())
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout)

    state = jax.tree.map(on_mesh, jax.eval_shape(init))
    batch_shapes = step_lib.batch_shapes(config.phases[phase_index])
    arguments = {
        "parameters": state.params,
        "optimizer_moments": state.opt_state,
        "batch": sharding.abstract_batch(batch_shapes, mesh),
    }
    sizes = {name: hlo.device_bytes(tree) for name, tree in arguments.items()}
    step = compilation.jit(step_lib.make_train_step(config, graphdef, tx, schedule))
    start = time.perf_counter()
    try:
        compiled = compilation.compile_phase(config, step, state, mesh, phase_index)
    except jax.errors.JaxRuntimeError as error:
        needed = hlo.refused_bytes(str(error))
        if needed is None:
            raise
        facts = {"refusal": str(error).splitlines()[0], "needed_bytes": needed[0]}
        program = None
    else:
        program = hlo.CompiledProgram(compiled.as_text() or "", mesh.size)
        costs: Any = compiled.cost_analysis() or {}
        facts = {
            "memory": hlo.memory(compiled),
            "flops_loops_once": costs.get("flops", 0.0),
            "collectives": [
                {
                    "kind": each.kind,
                    "bytes": each.num_bytes,
                    "devices": each.group_size,
                    "times_a_step": each.times,
                }
                for each in program.collectives
            ],
        }
    seconds = time.perf_counter() - start
    facts = {"seconds_to_compile": seconds, "arguments": sizes} | facts
    return Trial(config, facts, program)


def micro_batch(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, phase_index: int
) -> int:
    """Returns the number of sequences per device and microbatch."""
    rows = mesh_lib.batch_divisor(mesh) * config.accumulation_steps
    return config.phases[phase_index].global_batch_size // rows


def with_micro_batch(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, phase_index: int, sequences: int
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
) -> tuple[int, Trial | None]:
    """Searches for the largest microbatch that fits, on a line through two programs.

    The search stops within 5% or after MAX_SEARCH programs. If none of them fits, it
    halves the batch until one does. Batches of 64 and more are multiples of TILE.

    Args:
      sequences: microbatch of the trial, which was compiled already.
      trial: the trial.
      limit: memory of one device.
      compile_: compiles the step for a microbatch.

    Returns:
      The number of sequences and their trial; 0 and None if not even one fits.
    """
    tried = {sequences: trial}
    guess = sequences * limit / trial.total_bytes
    while True:
        best = max((n for n, each in tried.items() if each.fits), default=0)
        refused = min((n for n, each in tried.items() if not each.fits), default=0)
        if len(tried) > MAX_SEARCH:
            guess = best or refused / 2
        guess = max(guess, 1.0)
        if refused:
            guess = min(guess, refused / TOLERANCE)
        rows = int(guess) // TILE * TILE if guess >= 8 * TILE else int(guess)
        if rows < max(best * TOLERANCE, 1):
            return best, tried.get(best)
        tried[rows] = compile_(rows)
        (n, before), (m, last) = list(tried.items())[-2:]
        slope = (last.total_bytes - before.total_bytes) / (m - n)
        guess = m + (limit - last.total_bytes) / slope if slope > 0 else m / 2
