"""Starts a run with the whole state of another run's checkpoint.

config.branch_from names it as RUN@STEP. The branch takes over the parameters, the
optimizer state, the step and the data position, and saves them in its own workdir. It
then continues with its own number of steps and schedule, so that one long run at a
constant rate gives models of many lengths, each for the cost of its decay.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import phases, storage
from bert_jax.checkpoint import integrity
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig, MayChange
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.distributed import multihost
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.phases import Position
from bert_jax.training import optimizer
from bert_jax.training.step import TrainState


@dataclasses.dataclass(frozen=True)
class Branch:
    """A checkpoint of another run, as the start of a run."""

    step: int
    position: Position
    checkpoints: Checkpoints  # the checkpoints of the other run
    notes: tuple[str, ...]  # a line for the user
    averages_later: bool  # whether the mean of the parameters begins after the step

    def first_state(
        self, init: Callable[[], TrainState], corpus: Corpus, mesh: jax.sharding.Mesh
    ) -> tuple[Position, TrainState]:
        """Returns the position and the restored state, and closes the checkpoints."""
        opened = contextlib.closing(self.checkpoints)
        with opened, _deletion_explained(self.checkpoints, self.step):
            state = self.checkpoints.restore(self.step, jax.eval_shape(init), mesh)
        if self.averages_later:  # the other run may average already
            average = jax.tree.map(jnp.copy, state.params)
            state = dataclasses.replace(state, average=average)
        return self.position, state


@contextlib.contextmanager
def _deletion_explained(checkpoints: Checkpoints, step: int) -> Iterator[None]:
    """Explains the error of a checkpoint that its run has deleted in the meantime."""
    try:
        yield
    except CorruptError:
        path = f"{checkpoints.directory}/{step}"
        if storage.exists(path):
            raise
        raise ConfigError(
            f"{path} was deleted by its run; set config.checkpoint.keep_steps there, or"
            " branch from another step"
        ) from None


def check(config: ExperimentConfig) -> None:
    """Checks the source of a branch, before anything is opened or written."""
    run, step = _source(config)
    given = f"config.branch_from={config.branch_from!r}"
    source = workdir_lib.config_of_run(run, f"{given}: {run}")
    steps = integrity.steps(run)
    if step not in steps:
        raise ConfigError(
            f"{given}: there is no checkpoint of step {step}; available steps:"
            f" {', '.join(map(str, steps)) or 'none'}"
        )
    _check_keys(source, config, run, step)
    _check_rates(source, config, run, step)
    remedy = f"use config.branch_from={run}@"
    multihost.agree("branch", lambda: integrity.check(run, step, remedy))


def open_branch(config: ExperimentConfig, corpus: Corpus) -> Branch:
    """Opens the source of a branch."""
    run, step = _source(config)
    checkpoints = Checkpoints(run)
    with _deletion_explained(checkpoints, step):
        plan = checkpoints.plan(step)
        position = checkpoints.position(step, corpus.sha256)
    if plan and (plan["progress"] > 0 or plan["step"] < step):
        raise ConfigError(
            f"config.branch_from={config.branch_from!r}: the rate of the run was"
            " decaying at this step, towards the end of config.budget_hours; use an"
            f" earlier one of {', '.join(map(str, integrity.steps(run)))}"
        )
    note = f"parameters, optimizer state and data position of {config.branch_from}"
    averages_later = 0 < config.optimizer.average_steps <= config.num_steps - step
    return Branch(step, position, checkpoints, (note,), averages_later)


def _source(config: ExperimentConfig) -> tuple[str, int]:
    """Returns the workdir and the step that config.branch_from names."""
    run, _, step = config.branch_from.rpartition("@")
    if not run or not (step.isascii() and step.isdigit()):
        raise ConfigError(
            f"config.branch_from={config.branch_from!r} must be RUN@STEP, the workdir"
            " of a run and the step of one of its checkpoints, for example"
            " runs/base@100000"
        )
    return storage.absolute(storage.parse_path("config.branch_from", run)), int(step)


def _check_keys(
    source: ExperimentConfig, config: ExperimentConfig, run: str, step: int
) -> None:
    """Checks that the keys of the steps up to `step` are those of the source."""
    phase_index, done = phases.phase_of(source, step - 1)
    changed = [
        (f"config.{key}", was, now)
        for key, was, now in workdir_lib.changed_keys(source, config, {*MayChange})
        if not _is_later(key, phase_index)
    ]
    if changed:
        key, was, now = changed[0]
        old = {key: was for key, was, _ in changed}
        raise ConfigError(
            f"{key}={now!r}, but {run} took its first {step:,} steps with {was!r};"
            f" branch with {workdir_lib.as_flags(old, workdir_lib.CONFIG_FILE)}"
        )
    num_steps = config.phases[phase_index].num_steps
    if num_steps <= done or config.num_steps <= step:
        raise ConfigError(
            f"config.phases[{phase_index}].num_steps={num_steps}, but at step {step:,}"
            f" {run} had taken {done + 1:,} steps of this phase; use a larger number"
        )
    final = config.data.final_masked_lm_prob
    if final and config.num_steps != source.num_steps:
        raise ConfigError(
            f"config.data.final_masked_lm_prob={final} is for the last of"
            f" {source.num_steps:,} steps in {run}, but the phases have"
            f" {config.num_steps:,}; use as many in a branch"
        )
    average_steps, left = config.optimizer.average_steps, config.num_steps - step
    if average_steps > left and config.num_steps != source.num_steps:
        raise ConfigError(
            f"config.optimizer.average_steps={average_steps}: the averaged steps begin"
            f" before step {step:,} of {run}; branch from an earlier step, or raise"
            f" config.phases[{phase_index}].num_steps by {average_steps - left:,}"
        )


def _is_later(key: str, phase_index: int) -> bool:
    """Returns whether a key does not affect steps up to one in the given phase."""
    if not key.startswith("phases["):
        return False
    index, _, name = key.removeprefix("phases[").partition("].")
    own = int(index) == phase_index and name == "num_steps"
    return own or int(index) > phase_index


def _check_rates(
    source: ExperimentConfig, config: ExperimentConfig, run: str, step: int
) -> None:
    """Checks that the learning rates of the steps up to `step` are the same."""

    def rates(of: ExperimentConfig) -> Any:
        return np.asarray(optimizer.make_schedule(of)(jnp.arange(step)))

    was, now = rates(source), rates(config)
    # The warmups of two schedules may differ in the last bit.
    (wrong,) = np.nonzero(~np.isclose(was, now, rtol=1e-5, atol=0.0))
    if wrong.size:
        i = int(wrong[0])
        raise ConfigError(
            f"config.optimizer gives step {i + 1:,} the rate {now[i]:.4g}, but {run}"
            f" took it with {was[i]:.4g}; a branch has the same rates up to step"
            f" {step:,}: with schedule 'wsd', set config.optimizer.decay_steps to"
            f" {max(config.num_steps - step, 1)} or less, and branch from a run whose"
            " rate is constant up to this step"
        )
