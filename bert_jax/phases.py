"""Maps training steps to batches: the position of a run in its data.

Batch i of a phase is a function of corpus, config and seed, so a position is a few
integers: the step and the batches that the run skips.
"""

import bisect
import dataclasses
from collections.abc import Iterator
from typing import Any

from bert_jax.config import ExperimentConfig


@dataclasses.dataclass(frozen=True)
class Skip:
    """Consecutive batches of a phase that a run skips because it diverged on them."""

    phase_index: int
    first_batch: int  # of the phase, from 0
    num_batches: int


Skips = tuple[Skip, ...]


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of a run in its data, apart from its step."""

    corpus_sha256: str  # of the manifest
    skips: Skips = ()  # disjoint and in order
    rollbacks: int = 0  # so far; each one adds to `skips`

    @classmethod
    def from_json(cls, values: Any) -> "Position":
        """Reads `dataclasses.asdict` of a position; Python's errors for other forms."""
        skips = tuple(Skip(**skip) for skip in values["skips"])
        return cls(values["corpus_sha256"], skips, int(values["rollbacks"]))


def phase_of(config: ExperimentConfig, step: int) -> tuple[int, int]:
    """Returns the phase after `step` steps, and the number of its completed steps.

    At the end of the run, it is the last phase and the number of its steps.
    """
    starts = phase_starts(config)
    index = bisect.bisect_right(starts, step) - 1
    return index, step - starts[index]


def phase_starts(config: ExperimentConfig) -> list[int]:
    lengths = [phase.num_steps for phase in config.phases]
    return [sum(lengths[:i]) for i in range(len(lengths))]


def batch_of(config: ExperimentConfig, step: int, skips: Skips) -> tuple[int, int]:
    """Returns the phase and the batch of that phase that follow `step` steps."""
    phase_index, batch = phase_of(config, step)
    for skip in _of_phase(skips, phase_index):
        if skip.first_batch <= batch:
            batch += skip.num_batches
    return phase_index, batch


def runs_of_batches(
    config: ExperimentConfig, first_step: int, skips: Skips
) -> Iterator[tuple[int, int, int]]:
    """Yields (phase, first batch, number of batches) for all steps from `first_step`.

    Each item is a range of consecutive batches that ends at a skip or a phase boundary.
    """
    step = first_step
    while step < config.num_steps:
        phase_index, batch = batch_of(config, step, skips)
        _, done = phase_of(config, step)
        num_batches = config.phases[phase_index].num_steps - done
        for skip in _of_phase(skips, phase_index):
            if skip.first_batch > batch:
                num_batches = min(num_batches, skip.first_batch - batch)
        yield phase_index, batch, num_batches
        step += num_batches


def skipping(
    config: ExperimentConfig, skips: Skips, first_step: int, last_step: int
) -> Skips:
    """Adds to `skips` the batches of the steps that a rollback undoes.

    Those are the steps after that of the checkpoint, `first_step`, up to the one at
    which the run diverged, `last_step`. The result depends neither on the number of
    rollbacks nor on the checkpoints that they restored, so a run that resumes from an
    older checkpoint with these skips trains on the same batches again.
    """
    merged = []
    for index, start in enumerate(phase_starts(config)):
        stop = start + config.phases[index].num_steps
        first, last = max(first_step, start), min(last_step, stop)
        own = list(_of_phase(skips, index))
        if first < last:
            _, first_batch = batch_of(config, first, skips)
            _, last_batch = batch_of(config, last - 1, skips)
            own.append(Skip(index, first_batch, last_batch + 1 - first_batch))
        merged += _merged(own)
    return tuple(merged)


def _of_phase(skips: Skips, phase_index: int) -> Iterator[Skip]:
    return (skip for skip in skips if skip.phase_index == phase_index)


def _merged(skips: list[Skip]) -> list[Skip]:
    """Returns disjoint skips in order that cover the same batches of one phase."""
    merged: list[Skip] = []
    for skip in sorted(skips, key=lambda skip: skip.first_batch):
        stop = skip.first_batch + skip.num_batches
        if merged and skip.first_batch <= merged[-1].first_batch + (
            merged[-1].num_batches
        ):
            skip = merged.pop()
            stop = max(stop, skip.first_batch + skip.num_batches)
        merged.append(Skip(skip.phase_index, skip.first_batch, stop - skip.first_batch))
    return merged
