"""Ranks the checkpoints of a run by held-out loss, within each phase.

Losses of phases that differ in row length or batch size are not comparable. They come
from the evaluations in metrics.jsonl, so a checkpoint that was saved at an interruption
just before its evaluation has a loss as well.
"""

import json
import math
from collections.abc import Collection, Sequence
from typing import Any

from bert_jax.config import ExperimentConfig
from bert_jax.distributed import multihost
from bert_jax.monitoring import writer
from bert_jax.monitoring.writer import HELD_OUT_LOSS
from bert_jax.phases import phase_of


class Ranking:
    """The held-out losses of a run by step; an Orbax preservation policy."""

    def __init__(self, num_best: int):
        """Creates a ranking without losses.

        Args:
          num_best: number of checkpoints to preserve in each phase.
        """
        self._num_best = num_best
        self._losses: dict[int, tuple[int, float]] = {}  # by step: phase, loss

    def add(self, step: int, phase_index: int, loss: float) -> None:
        """Records the loss of an evaluation after `step`, a step of the given phase."""
        self._losses[step] = phase_index, loss if math.isfinite(loss) else math.inf

    def drop_after(self, step: int) -> None:
        """Drops the evaluations after `step`, which a rollback undid."""
        self._losses = {s: loss for s, loss in self._losses.items() if s <= step}

    def is_best(self, step: int, saved: Collection[int]) -> bool:
        """Returns whether a checkpoint of `step` would be preserved.

        Args:
          step: step of an evaluation.
          saved: steps of the saved checkpoints.
        """
        return step in self._best({*saved, step})

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> Sequence[bool]:
        """Returns whether each checkpoint is preserved; called by Orbax."""
        del context
        best = self._best({checkpoint.step for checkpoint in checkpoints})
        return [checkpoint.step in best for checkpoint in checkpoints]

    def _best(self, steps: Collection[int]) -> set[int]:
        by_phase: dict[int, list[tuple[float, int]]] = {}
        for step in steps:
            if step in self._losses:
                phase_index, loss = self._losses[step]
                by_phase.setdefault(phase_index, []).append((loss, step))
        ranked = (sorted(found)[: self._num_best] for found in by_phase.values())
        return {step for found in ranked for _, step in found}


def read(workdir: str, config: ExperimentConfig, last_step: int) -> Ranking:
    """Returns the ranking of a run's evaluations up to `last_step`.

    All processes call this together, and all get the same losses.
    """

    def losses() -> str:
        found = {
            line["step"]: line[HELD_OUT_LOSS]
            for line in writer.read(workdir)
            if HELD_OUT_LOSS in line and line["step"] <= last_step
        }
        return json.dumps(list(found.items()))

    ranking = Ranking(config.checkpoint.keep_best)
    for step, loss in json.loads(multihost.agree("held-out losses", losses)):
        phase_index, _ = phase_of(config, step - 1)
        ranking.add(step, phase_index, math.inf if loss is None else loss)
    return ranking
