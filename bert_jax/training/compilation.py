"""The compiled train step of each phase: the next one is made while this one runs."""

import os
import tempfile
from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.distributed import sharding
from bert_jax.errors import ConfigError
from bert_jax.training import step as step_lib

Compiled = jax.stages.Compiled


def jit(train_step: Callable[..., Any]) -> Any:
    """Returns the step jitted as in every run: the new state is where the old was."""
    return jax.jit(train_step, donate_argnums=0)


def compile_phase(
    config: ExperimentConfig,
    train_step: Any,
    state: step_lib.TrainState,
    mesh: jax.sharding.Mesh,
    phase_index: int,
    options: dict[str, Any] | None = None,
) -> Compiled:
    """Compiles the step for the batches of a phase.

    Args:
      config: of the run.
      train_step: from `jit`.
      state: arrays, or their shapes and layouts.
      mesh: of the run.
      phase_index: of config.phases.
      options: for the compiler.
    """
    with jax.set_mesh(mesh):  # of this thread
        batch = sharding.abstract_batch(
            step_lib.batch_shapes(config.phases[phase_index]), mesh
        )
        return train_step.lower(state, batch).compile(compiler_options=options)


class CompiledSteps:
    """Compiles phases one ahead of their use, in a thread.

    A phase is begun when the one before it is taken: a run of 128 and then 512 tokens
    does not stop in between.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        train_step: Any,
        state: step_lib.TrainState,
        mesh: jax.sharding.Mesh,
    ):
        """Keeps the shapes of `state`, not its arrays.

        Args:
          config: of the run.
          train_step: from `jit`.
          state: as the steps will be given it.
          mesh: of the run.
        """
        self._config, self._train_step, self._mesh = config, train_step, mesh
        self._state = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        self._thread = futures.ThreadPoolExecutor(1, "compile")
        self._begun: dict[int, futures.Future[Compiled]] = {}

    def begin(self, phase_index: int) -> futures.Future[Compiled]:
        """Starts compiling a phase, unless that was begun before."""
        if phase_index not in self._begun:
            self._begun[phase_index] = self._thread.submit(self._compile, phase_index)
        return self._begun[phase_index]

    def is_ready(self, phase_index: int) -> bool:
        """Returns whether `of` would not have to wait."""
        return phase_index in self._begun and self._begun[phase_index].done()

    def of(self, phase_index: int) -> Compiled:
        """Returns the step of a phase, (state, batch) -> (state, metrics)."""
        compiled = self.begin(phase_index).result()
        if phase_index + 1 < len(self._config.phases):
            self.begin(phase_index + 1)
        return compiled

    def _compile(self, phase_index: int) -> Compiled:
        return compile_phase(
            self._config, self._train_step, self._state, self._mesh, phase_index
        )


def keep_compiled(compilation_cache_dir: str) -> None:
    """Makes JAX keep compiled programs in config.compilation_cache_dir, if given.

    What is kept there is run as code: nobody else may be able to write to it.

    Raises:
      ConfigError: when nothing can be written there.
    """
    if compilation_cache_dir:
        directory = os.path.expanduser(compilation_cache_dir)
        try:
            os.makedirs(directory, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError as error:
            raise ConfigError(
                f"config.compilation_cache_dir={directory!r}: {error.strerror}; give a"
                " directory that can be written, or '' to keep nothing"
            ) from None
        jax.config.update("jax_compilation_cache_dir", directory)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
