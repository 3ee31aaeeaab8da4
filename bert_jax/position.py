"""Which batch of which phase a step trains on: a run's place in its data.

Batch i of a phase is a function of corpus, config and seed, so a place is a few
integers: the step, and what was skipped before it.
"""

import dataclasses

from bert_jax.config import ExperimentConfig


@dataclasses.dataclass(frozen=True)
class Skip:
    """Batches that a run left out because it diverged on them.

    Attributes:
      phase_index: of config.phases.
      first: the step of the phase, from 0, that takes the batch after them.
      num_batches: how many.
    """

    phase_index: int
    first: int
    num_batches: int


Skips = tuple[Skip, ...]


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a run is in its data, beside its step.

    Attributes:
      corpus_sha256: of the corpus's manifest.
      skips: batches that are left out.
      rollbacks: how often the run went back to leave some out.
      log: metrics of the steps since the last log line, in order.
    """

    corpus_sha256: str
    skips: Skips = ()
    rollbacks: int = 0
    log: tuple[dict[str, float], ...] = ()


def phase_of(config: ExperimentConfig, step: int) -> tuple[int, int]:
    """Returns the phase that trains when `step` are done, and how many of its own are.

    At the end of the run that is the last phase and all of its steps.
    """
    for index, phase in enumerate(config.phases):
        if step < phase.num_steps or index == len(config.phases) - 1:
            return index, step
        step -= phase.num_steps
    raise AssertionError("a config has at least one phase")


def phase_starts(config: ExperimentConfig) -> list[int]:
    """Returns the steps that are done when each phase begins."""
    lengths = [phase.num_steps for phase in config.phases]
    return [sum(lengths[:i]) for i in range(len(lengths))]


def batch_of(config: ExperimentConfig, step: int, skips: Skips) -> tuple[int, int]:
    """Returns the phase, and which of its batches comes when `step` are done."""
    phase_index, step_of_phase = phase_of(config, step)
    skipped = sum(
        skip.num_batches
        for skip in skips
        if skip.phase_index == phase_index and skip.first <= step_of_phase
    )
    return phase_index, step_of_phase + skipped


def window(config: ExperimentConfig, first_step: int, last_step: int) -> Skips:
    """Returns what to skip at `first_step` so that no batch up to `last_step` returns.

    Args:
      config: of the run.
      first_step: steps done when the window begins.
      last_step: steps done when it ends.
    """
    found = []
    for index, start in enumerate(phase_starts(config)):
        stop = start + config.phases[index].num_steps
        first, last = max(first_step, start), min(last_step, stop)
        if first < last:
            found.append(Skip(index, first - start, last - first))
    return tuple(found)
