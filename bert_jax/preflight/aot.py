"""Trial compilations of the step of a phase, and the search for the largest batch.

libtpu refuses a program that is over the memory of its chip, with a number, and then
generates no code, which takes most of the time. Told that a chip has next to none, it
gives that number for any program. It is an early one, before the final layout of memory
and before it computes again what it cannot keep, so it serves to compare batches and
depths; what is said to fit was compiled in full.
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

# Layers of the models that are compiled to learn what a layer adds.
FEW_LAYERS = (2, 3)
# Rows of a batch on a device go into tiles of eight; of few rows each one counts.
TILE = 8
FEW_ROWS = 8 * TILE
# Times the first batch of a line, its second at most: where a small model fills a chip,
# arrays have many GiB, and compilation takes minutes.
FARTHEST = 32
# Whole programs that a search compiles, beside one for each halving where all were
# refused, and how much more or less one takes than another that is worth it.
MOST_TRIES = 4
WORTH_A_TRY = 1.05
# Times the memory there is, by few layers, where a search begins, and from where on a
# batch is not compiled. Since libtpu computes again what it cannot keep, the largest of
# base that fits v5e was seen at 1.4, and a batch of 4 layers of 128 that fits at 2.0.
FIRST_GUESS = 1.5
FAR_TOO_LARGE = 3.0


@dataclasses.dataclass(frozen=True)
class Trial:
    """What came of compiling one step, on one device, or of not having to."""

    config: ExperimentConfig
    seconds: float  # it took to compile
    arguments: dict[str, int]  # bytes of parameters, optimizer_moments, batch
    memory: dict[str, int] | None = None  # see compiled_program.memory; None: refused
    program: CompiledProgram | None = None
    flops: float = 0.0  # by the compiler, loops counted once
    refusal: str = ""
    needed_bytes: int = 0  # by the refusal, or where it was not compiled by few layers
    compiled: bool = True

    @property
    def fits(self) -> bool:
        return self.memory is not None


def compile_step(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    phase_index: int,
    options: dict[str, Any] | None = None,
) -> Trial:
    """Compiles the step that `train` would run in a phase, or learns why it cannot.

    Args:
      config: of the run.
      mesh: which is set, of these or other devices.
      phase_index: of config.phases.
      options: for the compiler.
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
    """Returns the trial of a step of which few layers tell that it does not fit."""
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
    """Returns the graph, and shapes and layouts of the state's arrays."""
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
    """Returns where an array of the state is; scalars come without a layout."""
    sharding: Any = x.sharding
    return NamedSharding(mesh, sharding.spec if sharding else jax.P())


def micro_batch(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, phase_index: int
) -> int:
    """Returns how many sequences a device takes at a time."""
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
    """Returns the config with another micro-batch or depth."""
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
    """The compiler's early number of bytes as a line over the micro-batch."""

    at: int  # sequences
    bytes_there: float
    a_sequence: float  # bytes

    def of(self, sequences: int) -> float:
        return self.bytes_there + (sequences - self.at) * self.a_sequence

    def largest(self, limit: float) -> int:
        """Returns how many sequences come under the limit, in tiles; 0 for none."""
        return _tiles(self.at + (limit - self.bytes_there) / self.a_sequence)


def _tiles(sequences: float) -> int:
    """Returns the whole tiles of a number of sequences; of few, the number."""
    most = max(int(sequences), 0)
    return most // TILE * TILE if most >= FEW_ROWS else most


def early_memory(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, phase_index: int, limit: float
) -> EarlyMemory:
    """Compiles four programs of few layers, as far as memory.

    It grows by a line with the depth and, for more than a few sequences, with the
    batch.

    Args:
      config: of the run, whose depth and remat are meant.
      mesh: which is set.
      phase_index: of config.phases.
      limit: bytes; the line is most precise for the batches that come near.
    """

    def ask(sequences: int) -> float:
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
    first = ask(at)
    guess = max(_tiles(at * min(limit / first, FARTHEST)), TILE)
    if at / 2 < guess < at * 2:  # too near to tell a slope
        guess = 2 * at
    return EarlyMemory(at, first, max((ask(guess) - first) / (guess - at), 1.0))


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
    """Finds the largest micro-batch, from 64 on in tiles of eight, and compiles it.

    It is within some 5% or a sequence of the largest, which would take many more
    compilations; where every guess was refused, within a half.

    Args:
      trial: the config's own batch.
      early: of the config.
      mesh: of the run.
      phase_index: of config.phases.
      hbm_bytes: of a device.
      compile_: compiles a step in full.

    Returns:
      The sequences and their trial; 0 and None where not one sequence fits.
    """
    config = trial.config
    wanted = micro_batch(config, mesh, phase_index)
    best, refused = ((wanted, trial), None) if trial.fits else ((0, None), wanted)
    # From above: a refusal tells how far to go down, and takes no time for code.
    guess = early.largest(FIRST_GUESS * hbm_bytes)
    if trial.compiled and not trial.fits:
        guess = min(guess, _below(trial, early, wanted, hbm_bytes))
    for _ in range(MOST_TRIES):
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
        half = refused // 2  # so many guesses say nothing of it
        found = compile_(changed(config, mesh, phase_index, sequences=half))
        best, refused = ((half, found) if found.fits else best), half
    return best


def _above(fitting: Trial, early: EarlyMemory, sequences: int, limit: int) -> int:
    """Returns how many sequences would fill the memory."""
    assert fitting.memory
    total = fitting.memory["total"]
    room = (limit - total) / (early.a_sequence * _over(total, early, sequences))
    return _tiles(sequences + room)


def _below(refused: Trial, early: EarlyMemory, sequences: int, limit: int) -> int:
    """Returns how many sequences would come under the limit, so few as to differ."""
    needed = refused.needed_bytes
    excess = (needed - limit) / (early.a_sequence * _over(needed, early, sequences))
    return _tiles(min(sequences - excess, sequences / WORTH_A_TRY))


def _over(num_bytes: float, early: EarlyMemory, sequences: int) -> float:
    """Returns how many times the early number a later one is; 1 where it is less."""
    return max(num_bytes / max(early.of(sequences), 1.0), 1.0)


def accumulation_for(
    config: ExperimentConfig,
    mesh: jax.sharding.Mesh,
    phase_index: int,
    largest: int,
    at_least: int = 1,
) -> int | None:
    """Returns the fewest accumulation_steps with which the global batch fits, or None.

    A micro-batch is at most `largest` sequences, and there are `at_least` of them.
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
