"""Traces the steps of config.profile for TensorBoard's profile plugin (xprof)."""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import jax

from bert_jax import storage
from bert_jax.monitoring.monitor import Monitor

T = TypeVar("T")


class Profiler:
    """Writes a trace of some steps to plugins/profile in the workdir.

    As a context manager, it stops a trace that an error or an interruption cuts off.
    """

    def __init__(
        self, steps: Sequence[int], workdir: str, first_step: int, monitor: Monitor
    ):
        """Prepares for the step after `first_step`.

        Args:
          steps: config.profile, the first step and the number of steps; or () for none.
        """
        self._workdir, self._monitor = workdir, monitor
        self._steps = range(steps[0], sum(steps)) if steps else range(0)
        self._is_on = False
        if self._steps and self._steps[0] <= first_step:
            monitor.print(
                f"config.profile: no trace, because step {self._steps[0]:,} was taken"
                " before this call"
            )
            self._steps = range(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_on:
            self._stop()

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
            self._stop()
        return result

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # it slows the steps down
        self._directory = self._workdir
        if storage.is_remote(self._workdir):
            self._scratch = tempfile.TemporaryDirectory()
            self._directory = self._scratch.name
        with self._monitor.activity("profiling"):
            jax.profiler.start_trace(self._directory, profiler_options=options)
        self._monitor.stop_clock()
        self._is_on = True

    def _stop(self) -> None:
        self._is_on = False
        with self._monitor.activity("profiling"):
            jax.profiler.stop_trace()
            if self._directory != self._workdir:
                storage.upload(self._directory, self._workdir)
        self._monitor.stop_clock()
        self._monitor.print(
            f"config.profile: the trace is in {self._workdir}/plugins/profile; see it"
            f" with pip install xprof and tensorboard --logdir={self._workdir}"
        )
