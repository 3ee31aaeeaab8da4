"""Opens a training run: its config, corpus, and the parameters of a checkpoint."""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from bert_jax import phases
from bert_jax.checkpoint import integrity
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.checkpoint.workdir import config_of_run
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.distributed import devices
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.loading import new_run
from bert_jax.model.parameters import shapes
from bert_jax.training import step as step_lib


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A training run opened at a checkpoint, with its parameters on the mesh."""

    config: ExperimentConfig
    corpus: corpus_lib.Corpus
    mesh: jax.sharding.Mesh
    step: int
    phase_index: int  # the phase of the step
    graphdef: nnx.GraphDef
    params: Any

    @functools.cached_property
    def eval_step(self) -> Callable[..., Any]:
        return jax.jit(step_lib.make_eval_step(self.config, self.graphdef))

    @property
    def accumulation_steps(self) -> int:
        """That of the config, reduced to divide the rows of a device."""
        batch = self.config.phases[self.phase_index].global_batch_size
        rows = batch // mesh_lib.batch_divisor(self.mesh)
        return math.gcd(self.config.accumulation_steps, rows)


def open_run(
    workdir: str, step: int | None, corpus_dir: str | None = None
) -> OpenedRun:
    """Restores a checkpoint, by default the newest, onto all devices."""
    config = config_of_run(workdir, f"--workdir={workdir}")
    if corpus_dir:
        data = dataclasses.replace(config.data, corpus_dir=corpus_dir)
        config = dataclasses.replace(config, data=data)
    directory = config.data.corpus_dir
    if not corpus_lib.exists(directory):
        raise ConfigError(
            f"the run's corpus is not at {directory!r} (relative to {os.getcwd()}), or"
            " it is unfinished; if it was moved, use --corpus_dir=DIR; otherwise finish"
            " it with python -m bert_jax.prepare and the flags with which it was begun"
        )
    devices.open_local_devices()
    checkpoints = Checkpoints(workdir)
    available = checkpoints.steps()
    if not available or (step is not None and step not in available):
        raise ConfigError(
            f"--workdir={workdir} has no checkpoint"
            f"{'' if step is None else f' of step {step}'};"
            f" available steps: {', '.join(map(str, available)) or 'none'}"
        )
    step = available[-1] if step is None else step
    integrity.check(workdir, step, "use --step=")
    if corpus_lib.sha256(directory) != checkpoints.position(step).corpus_sha256:
        raise ConfigError(
            f"--workdir={workdir} was not trained on the corpus in {directory!r}; use"
            " --corpus_dir=DIR with the directory of the run's corpus"
        )
    corpus = corpus_lib.read(config)
    phase_index, _ = phases.phase_of(config, max(step - 1, 0))
    mesh = set_mesh(config, phase_index)
    graphdef, like = abstract_params(config)
    params = restore_weights(checkpoints, config, step, like, mesh)
    checkpoints.close()
    return OpenedRun(config, corpus, mesh, step, phase_index, graphdef, params)


def open_start(config: ExperimentConfig) -> tuple[OpenedRun, tuple[str, ...]]:
    """Opens the model that a run starts from, as the run at its first step.

    Its phase is the last one, so that an evaluation can be compared with one of the
    trained model. Returns notes on parameters that the model lacks, too.
    """
    if not config.init_from and not config.branch_from:
        raise ConfigError("config.init_from is empty; give --config.init_from=MODEL")
    devices.open_local_devices()
    phase_index = len(config.phases) - 1
    mesh = set_mesh(config, phase_index)
    corpus, start = new_run.open_inputs(config, is_begun=False)
    assert start is not None
    graphdef, init = step_lib.init_state(config)
    _, state = start.first_state(init, corpus, mesh)
    opened = config, corpus, mesh, start.step, phase_index, graphdef, state.weights
    return OpenedRun(*opened), start.notes


def restore_weights(
    checkpoints: Checkpoints,
    config: ExperimentConfig,
    step: int,
    like: Any,
    mesh: jax.sharding.Mesh,
) -> Any:
    """Restores the weights of a step, see `TrainState.weights`."""
    name = "average" if config.optimizer.average_steps else "params"
    return checkpoints.restore(step, {name: like}, mesh)[name]


def abstract_params(config: ExperimentConfig) -> tuple[nnx.GraphDef, Any]:
    """Returns the graphdef of a run's model, and its parameters as abstract arrays."""
    graphdef, init = step_lib.init_state(config)
    return graphdef, jax.eval_shape(init).params


def parameter_shapes(config: ExperimentConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of a run's model, by name."""
    _, params = abstract_params(config)
    return shapes(params)


def set_mesh(config: ExperimentConfig, phase_index: int) -> jax.sharding.Mesh:
    """Sets the run's mesh, or a data mesh whose size divides the batch."""
    batch, mesh = config.phases[phase_index].global_batch_size, None
    with contextlib.suppress(ConfigError):  # the run had another number of devices
        mesh = mesh_lib.make_mesh(config.mesh)
    if mesh is None or batch % mesh_lib.batch_divisor(mesh):
        num = math.gcd(batch, jax.device_count())
        mesh = mesh_lib.make_mesh(mesh_lib.DATA_ONLY, jax.devices()[:num])
    jax.set_mesh(mesh)
    return mesh
