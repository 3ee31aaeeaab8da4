"""Compiles the train step of each phase, one phase ahead of its use."""

import os
from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.distributed import sharding
from bert_jax.training import step as step_lib

Compiled = jax.stages.Compiled


# Options of XLA with which a train step was faster, by platform. On an H200, a step of
# BERT-base took 83 ms with the products of cuBLAS and 91 ms with those of Triton where
# XLA prefers them, and compiled in two thirds of the time.
OPTIONS: dict[str, dict[str, bool]] = {"gpu": {"xla_gpu_enable_triton_gemm": False}}


def compiler_options() -> dict[str, bool]:
    """Returns the options for this platform, except those that XLA_FLAGS sets."""
    given = os.environ.get("XLA_FLAGS", "")
    options = OPTIONS.get(sharding.platform(), {})
    return {name: value for name, value in options.items() if name not in given}


def jit(train_step: Callable[..., Any], donates_state: bool = True) -> Any:
    """Jits the train step with the compiler options of every run."""
    donated = 0 if donates_state else ()
    options = compiler_options()
    return jax.jit(train_step, donate_argnums=donated, compiler_options=options)


def compile_phase(
    config: ExperimentConfig,
    train_step: Any,
    state: step_lib.TrainState,
    mesh: jax.sharding.Mesh,
    phase_index: int,
    options: dict[str, Any] | None = None,
) -> Compiled:
    """Compiles the train step of `jit` for a state and the batches of a phase."""
    with jax.set_mesh(mesh):  # set_mesh applies to this thread only
        batch = sharding.abstract_batch(
            pipeline.batch_shapes(config.phases[phase_index]), mesh
        )
        number = jax.ShapeDtypeStruct(
            (), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P())
        )
        arguments = (state, batch, number) if config.budget_hours else (state, batch)
        return train_step.lower(*arguments).compile(compiler_options=options)


class CompiledSteps:
    """The compiled train steps of all phases, compiled in a thread.

    The compilation of a phase starts when the phase before it starts, so that a run of
    128 and then 512 tokens does not wait between its phases.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        train_step: Any,
        state: step_lib.TrainState,
        mesh: jax.sharding.Mesh,
    ):
        """Prepares to compile the train step of `jit` for `step.abstract_state`."""
        self._config, self._train_step = config, train_step
        self.state, self._mesh = state, mesh
        self._thread = futures.ThreadPoolExecutor(1, "compile")
        self._compiled: dict[int, futures.Future[Compiled]] = {}

    def start(self, phase_index: int) -> futures.Future[Compiled]:
        """Starts to compile a phase if that has not started yet."""
        if phase_index not in self._compiled:
            self._compiled[phase_index] = self._thread.submit(
                lambda: compile_phase(
                    self._config, self._train_step, self.state, self._mesh, phase_index
                )
            )
        return self._compiled[phase_index]

    def is_ready(self, phase_index: int) -> bool:
        """Returns whether `get` returns without waiting."""
        return phase_index in self._compiled and self._compiled[phase_index].done()

    def get(self, phase_index: int) -> Compiled:
        """Returns the step of a phase, see `step.make_train_step`.

        Waits for its compilation, and starts to compile the next phase. If that has
        failed, raises its error now, because the run could not be completed.
        """
        compiled = self.start(phase_index).result()
        if phase_index + 1 < len(self._config.phases):
            following = self.start(phase_index + 1)
            if following.done():
                following.result()
        return compiled
