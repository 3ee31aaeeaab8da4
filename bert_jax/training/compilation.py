"""Compiles the train step of each phase, one phase ahead of its use, and caches it."""

import contextlib
import hashlib
import os
import platform
import tempfile
from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import storage
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.distributed import sharding
from bert_jax.errors import ConfigError
from bert_jax.training import step as step_lib

Compiled = jax.stages.Compiled
_JAX_CONFIG: Any = jax.config  # JAX defines its attributes at import time

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
        """Prepares to compile the train step of `jit` for an abstract state."""
        self._config, self.state = config, state
        self._arguments = config, train_step, state, mesh
        self._thread = futures.ThreadPoolExecutor(1, "compile")
        self._compiled: dict[int, futures.Future[Compiled]] = {}

    def start(self, phase_index: int) -> futures.Future[Compiled]:
        """Starts to compile a phase if that has not started yet."""
        if phase_index not in self._compiled:
            self._compiled[phase_index] = self._thread.submit(
                compile_phase, *self._arguments, phase_index
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


# ------------------------------------------------------------------------------- cache
# Programs in a cache are run as code, so that a directory is used only if no other user
# can write to it. The directory in JAX's own variable is not checked.


def enable_cache(compilation_cache_dir: str) -> str:
    """Enables JAX's compilation cache, and returns a line with its directory.

    "" keeps none, whatever JAX_COMPILATION_CACHE_DIR names. "auto" is the directory of
    this variable, or else bert_jax in XDG_CACHE_HOME, which is ~/.cache by default. Any
    other directory must be writable, by this user only.
    """
    directory, reason = compilation_cache_dir, ""
    of_jax = _JAX_CONFIG.jax_compilation_cache_dir
    is_auto = directory == "auto"
    if is_auto and of_jax:
        return f"cache:  {of_jax}"
    try:
        if is_auto:
            directory = _default()
        elif storage.is_remote(directory):
            storage.write(f"{directory}/.writable", b"")
        elif directory:
            os.makedirs(os.path.dirname(os.path.abspath(directory)), exist_ok=True)
            storage.private_directory(directory)
            tempfile.TemporaryFile(dir=directory).close()
    except (OSError, ConfigError) as error:
        if not is_auto:
            raise ConfigError(
                f"config.compilation_cache_dir: {error}; give another directory, or ''"
                " to disable the cache"
            ) from None
        directory, reason = "", f", because {error}"  # a run does not need a cache
    jax.config.update("jax_compilation_cache_dir", directory or None)
    if not directory:
        return f"cache:  none{reason}"
    if not storage.is_remote(directory):
        # Programs of any compile time: the initializers of weights together take
        # seconds. Not in buckets, where reading is slower.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return f"cache:  {directory}"


def _default() -> str:
    """Creates the directory for "auto"."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # the XDG specification ignores such a value
        home = storage.parse_path("config.compilation_cache_dir", "~/.cache")
    os.makedirs(home, mode=0o700, exist_ok=True)
    private = os.path.join(home, "bert_jax")
    storage.private_directory(private)
    directory = os.path.join(private, f"compiled-{_cpu_digest()}")
    os.makedirs(directory, exist_ok=True)
    tempfile.TemporaryFile(dir=directory).close()
    return directory


def _cpu_digest() -> str:
    """Returns a digest of the features of the CPU, for a directory name.

    JAX's own keys have the versions of all compilers, but not these features, which
    differ between the hosts of a shared home directory.
    """
    features = platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        features += next((x for x in file if x.startswith(("flags", "Features"))), "")
    return hashlib.sha256(features.encode()).hexdigest()[:16]
