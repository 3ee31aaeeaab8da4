"""Trial compilations of the step of a phase, and the search for the largest batch.

libtpu rejects a program that exceeds the memory of its chip, reports how many bytes it
needs, and skips code generation, which takes most of the compilation time. With an
artificially small memory limit, it reports this number for any program. The number is
an early estimate, made before the final memory layout and before rematerialization by
the compiler, so it serves to compare batch sizes and depths only. Every batch that is
reported to fit was compiled in full.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import optax
from jax.sharding import NamedSharding

from bert_jax.config import ExperimentConfig
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.preflight import hlo
from bert_jax.preflight.hlo import CompiledProgram
from bert_jax.training import compilation, optimizer
from bert_jax.training import step as step_lib

# Depths of the models that are compiled to measure the memory of one layer.
FEW_LAYERS = (2, 3)
# A device stores rows of a batch in tiles of eight. The search steps by tiles from
# FEW_ROWS on, and by single rows below.
TILE = 8
FEW_ROWS = 8 * TILE
# Maximum ratio of the two batches that define the line of EarlyMemory. If a small model
# filled a chip, arrays would have many GiB and compilation would take minutes.
FARTHEST = 32
# Maximum number of full programs that a search compiles, not counting one for each
# halving after all were rejected; and the minimum ratio of batch sizes that is worth
# another compilation.
MAX_TRIES = 4
WORTH_A_TRY = 1.05
# Early estimates, as multiples of the available memory: where a search starts, and from
# where on a batch is not compiled. Because libtpu rematerializes, the largest batch of
# base that fits v5e was seen at 1.4, and a batch of 4 layers of 128 that fits at 2.0.
FIRST_GUESS = 1.5
FAR_TOO_LARGE = 3.0


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of compiling one step, or of estimating that it does not fit.

    All bytes are those of one device.
    """

    config: ExperimentConfig
    seconds: float  # compilation time
    arguments: dict[str, int]  # bytes of parameters, optimizer_moments, batch
    memory: dict[str, int] | None = None  # see hlo.memory; None: it does not fit
    program: CompiledProgram | None = None
    flops: float = 0.0  # reported by the compiler, which counts loop bodies once
    refusal: str = ""  # first line of the compiler's error
    needed_bytes: int = 0  # from the compiler's error, or estimated from few layers
    compiled: bool = True  # False: estimated from few layers

    @property
    def fits(self) -> bool:
        return self.memory is not None


def compile_step(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    phase_index: int,
    options: dict[str, Any] | None = None,
) -> Trial:
    """Compiles the train step of a phase.

    If the program exceeds the device's memory, the trial's `refusal` is the error
    message of the compiler.

    Args:
      config: config of the run.
      mesh: the current mesh, of local devices or of a topology.
      phase_index: index in config.phases.
      options: compiler options.
    """
    tx, schedule = optimizer.make_optimizer(config)
    graphdef, state = _abstract_state(config, tx, mesh)
    train_step = compilation.jit(
        step_lib.make_train_step(config, graphdef, tx, schedule)
    )
    arguments = _argument_bytes(config, state, mesh, phase_index)
    start = time.perf_counter()
    try:
        compiled = compilation.compile_phase(
            config, train_step, state, mesh, phase_index, options
        )
    except jax.errors.JaxRuntimeError as error:
        needed = hlo.refused_bytes(str(error))
        if needed is None:
            raise
        seconds = time.perf_counter() - start
        refusal = str(error).splitlines()[0]
        return Trial(
            config, seconds, arguments, refusal=refusal, needed_bytes=needed[0]
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


def uncompiled(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    phase_index: int,
    needed_bytes: float,
) -> Trial:
    """Returns the trial of a step that does not fit, by an estimate from few layers."""
    tx, _ = optimizer.make_optimizer(config)
    _, state = _abstract_state(config, tx, mesh)
    return Trial(
        config,
        0.0,
        _argument_bytes(config, state, mesh, phase_index),
        needed_bytes=int(needed_bytes),
        compiled=False,
    )


def _abstract_state(
    config: ExperimentConfig, tx: optax.GradientTransformation, mesh: jax.sharding.Mesh
) -> tuple[Any, step_lib.TrainState]:
    """Returns the graph definition, and the state's shapes, dtypes and shardings."""
    graphdef, init = step_lib.init_state(config, tx)
    state = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=_layout(x, mesh)),
        jax.eval_shape(init),
    )
    return graphdef, state


def _argument_bytes(
    config: ExperimentConfig,
    state: step_lib.TrainState,
    mesh: jax.sharding.Mesh,
    phase_index: int,
) -> dict[str, int]:
    batch_shapes = step_lib.batch_shapes(config.phases[phase_index])
    arguments = {
        "parameters": state.params,
        "optimizer_moments": state.opt_state,
        "batch": sharding.abstract_batch(batch_shapes, mesh),
    }
    return {name: hlo.device_bytes(tree) for name, tree in arguments.items()}


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


def changed(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    phase_index: int,
    *,
    sequences: int | None = None,
    layers: int | None = None,
) -> ExperimentConfig:
    """Returns the config with a different microbatch or number of layers.

    Args:
      config: config to change.
      mesh: mesh that the batch is divided over.
      phase_index: index in config.phases.
      sequences: sequences per device and microbatch; None to keep them.
      layers: number of layers; None to keep it.
    """
    if sequences:
        rows = mesh_lib.batch_divisor(mesh) * config.accumulation_steps
        phase = dataclasses.replace(
            config.phases[phase_index], global_batch_size=sequences * rows
        )
        before, after = config.phases[:phase_index], config.phases[phase_index + 1 :]
        config = dataclasses.replace(config, phases=(*before, phase, *after))
    if layers:
        model = dataclasses.replace(config.model, num_hidden_layers=layers)
        config = dataclasses.replace(config, model=model)
    return config


@dataclasses.dataclass(frozen=True)
class EarlyMemory:
    """The compiler's early memory estimate, linear in the microbatch.

    Attributes:
      at: sequences of a microbatch.
      bytes_there: estimate for that microbatch.
      bytes_per_sequence: slope of the line.
    """

    at: int
    bytes_there: float
    bytes_per_sequence: float

    def of(self, sequences: int) -> float:
        """Returns the estimated bytes of a microbatch."""
        return self.bytes_there + (sequences - self.at) * self.bytes_per_sequence

    def largest(self, limit: float) -> int:
        """Returns the largest number of sequences below the limit, or 0."""
        return _tiles(self.at + (limit - self.bytes_there) / self.bytes_per_sequence)


def _tiles(sequences: float) -> int:
    """Rounds sequences down to whole tiles; below FEW_ROWS, to an integer."""
    most = max(int(sequences), 0)
    return most // TILE * TILE if most >= FEW_ROWS else most


def early_memory(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, phase_index: int, limit: float
) -> EarlyMemory:
    """Estimates memory from four programs of few layers, without code generation.

    Memory is linear in the number of layers and, for more than a few sequences, in the
    batch size.

    Args:
      config: config of the run; the estimate is for its depth and remat.
      mesh: the current mesh.
      phase_index: index in config.phases.
      limit: bytes; the estimate is most precise for batches that need about this much.
    """

    def estimate(sequences: int) -> float:
        few, more = (
            _early_bytes(
                changed(config, mesh, phase_index, layers=n, sequences=sequences),
                mesh,
                phase_index,
            )
            for n in FEW_LAYERS
        )
        a_layer = (more - few) / (FEW_LAYERS[1] - FEW_LAYERS[0])
        return few + (config.model.num_hidden_layers - FEW_LAYERS[0]) * a_layer

    at = FEW_ROWS
    first = estimate(at)
    guess = max(_tiles(at * min(limit / first, FARTHEST)), TILE)
    if at / 2 < guess < at * 2:  # too near to measure a slope
        guess = 2 * at
    return EarlyMemory(at, first, max((estimate(guess) - first) / (guess - at), 1.0))


def _early_bytes(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, phase_index: int
) -> int:
    options = {"xla_tpu_max_hbm_size_mib": 1}
    trial = compile_step(config, mesh, phase_index, options)
    return trial.memory["total"] if trial.memory else trial.needed_bytes


def largest_that_fits(
    trial: Trial,
    early: EarlyMemory,
    mesh: jax.sharding.Mesh,
    phase_index: int,
    hbm_bytes: int,
    compile_: Callable[[ExperimentConfig], Trial],
) -> tuple[int, Trial | None]:
    """Finds the largest microbatch that fits, and compiles it.

    From FEW_ROWS on, the microbatch is a multiple of TILE. The result is within about
    5% or one sequence of the true maximum, which would take many more compilations to
    find. If every guess was rejected, it is within a factor of two.

    Args:
      trial: trial of the config's own batch.
      early: early estimate for the config.
      mesh: mesh of the run.
      phase_index: index in config.phases.
      hbm_bytes: memory of one device.
      compile_: compiles a step in full.

    Returns:
      The number of sequences and their trial; 0 and None if not even one fits.
    """
    config = trial.config
    wanted = micro_batch(config, mesh, phase_index)
    best, refused = ((wanted, trial), None) if trial.fits else ((0, None), wanted)
    # Approach from above: a rejection reports the excess and skips code generation.
    guess = early.largest(FIRST_GUESS * hbm_bytes)
    if trial.compiled and not trial.fits:
        guess = min(guess, _below(trial, early, wanted, hbm_bytes))
    for _ in range(MAX_TRIES):
        if refused is not None:
            guess = min(guess, _tiles(refused - 1))
        if guess <= best[0] or guess < best[0] * WORTH_A_TRY:
            break
        found = compile_(changed(config, mesh, phase_index, sequences=guess))
        if found.fits:
            best = (guess, found)
            guess = _above(found, early, guess, hbm_bytes)
        else:
            refused = guess
            guess = _below(found, early, guess, hbm_bytes)
    while best[1] is None and refused is not None and refused > 1:
        half = refused // 2  # the estimates have failed; halve until a batch fits
        found = compile_(changed(config, mesh, phase_index, sequences=half))
        best, refused = ((half, found) if found.fits else best), half
    return best


def _above(fitting: Trial, early: EarlyMemory, sequences: int, limit: int) -> int:
    """Estimates the number of sequences that would fill the memory."""
    assert fitting.memory
    total = fitting.memory["total"]
    slope = early.bytes_per_sequence * _correction(total, early, sequences)
    return _tiles(sequences + (limit - total) / slope)


def _below(refused: Trial, early: EarlyMemory, sequences: int, limit: int) -> int:
    """Estimates the number of sequences below the limit, at least 5% fewer."""
    needed = refused.needed_bytes
    slope = early.bytes_per_sequence * _correction(needed, early, sequences)
    return _tiles(min(sequences - (needed - limit) / slope, sequences / WORTH_A_TRY))


def _correction(num_bytes: float, early: EarlyMemory, sequences: int) -> float:
    """Returns the ratio of actual to early estimated bytes, at least 1."""
    return max(num_bytes / max(early.of(sequences), 1.0), 1.0)


def accumulation_for(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    phase_index: int,
    largest: int,
    at_least: int = 1,
) -> int | None:
    """Returns the smallest accumulation_steps with which the global batch fits.

    Args:
      config: config of the run.
      mesh: mesh of the run.
      phase_index: index in config.phases.
      largest: maximum sequences per device and microbatch.
      at_least: minimum accumulation_steps.

    Returns:
      The number of steps, or None if no number divides the batch and fits.
    """
    per_device, rest = divmod(
        config.phases[phase_index].global_batch_size, mesh_lib.batch_divisor(mesh)
    )
    if rest:
        return None
    for parts in range(at_least, per_device + 1):
        if per_device % parts == 0 and per_device // parts <= largest:
            return parts
    return None
