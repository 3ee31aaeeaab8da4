"""Ranks the checkpoints of a run by held-out loss, within each phase.

Losses of phases that differ in row length or batch size are not comparable, nor those
of evaluations with different settings: config.eval may change when a run resumes. They
come from the evaluations in metrics.jsonl, so a checkpoint that was saved at an
interruption just before its evaluation has a loss as well.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bert_jax.config import ExperimentConfig
from bert_jax.distributed import multihost
from bert_jax.monitoring import writer
from bert_jax.monitoring.writer import HELD_OUT_LOSS, HELD_OUT_SETTINGS
from bert_jax.phases import phase_of


class Ranking:
    """The held-out losses of a run by step; an Orbax preservation policy."""

    def __init__(self, num_best: int):
        """Creates a ranking that preserves `num_best` checkpoints of each phase."""
        self._num_best = num_best
        # By step: what must be equal to compare losses, and the loss.
        self._losses: dict[int, tuple[tuple[Any, ...], float]] = {}

    def add(self, step: int, phase_index: int, line: Mapping[str, Any]) -> None:
        """Records the held-out line of `step`, a step of the given phase."""
        loss = line[HELD_OUT_LOSS]  # null in metrics.jsonl if it was not finite
        if loss is None or not math.isfinite(loss):
            loss = math.inf
        settings = (line.get(f"eval_{name}") for name in HELD_OUT_SETTINGS)
        self._losses[step] = (phase_index, *settings), loss

    def drop_after(self, step: int) -> None:
        """Drops the evaluations after `step`, which a rollback undid."""
        self._losses = {s: loss for s, loss in self._losses.items() if s <= step}

    def is_best(self, step: int, saved: Collection[int]) -> bool:
        """Returns whether a checkpoint of `step` would be preserved."""
        return step in self._best({*saved, step})

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> Sequence[bool]:
        """Returns whether each checkpoint is preserved; called by Orbax."""
        del context
        best = self._best({checkpoint.step for checkpoint in checkpoints})
        return [checkpoint.step in best for checkpoint in checkpoints]

    def _best(self, steps: Collection[int]) -> set[int]:
        groups: dict[tuple[Any, ...], list[tuple[float, int]]] = {}
        for step in steps:
            if step in self._losses:
                group, loss = self._losses[step]
                groups.setdefault(group, []).append((loss, step))
        ranked = (sorted(found)[: self._num_best] for found in groups.values())
        return {step for found in ranked for _, step in found}


def read(workdir: str, config: ExperimentConfig, last_step: int) -> Ranking:
    """Returns the ranking of a run's evaluations up to `last_step`.

    All processes call this together, and all get the same losses.
    """

    def read_lines() -> str:
        lines = [line for line in writer.read(workdir) if HELD_OUT_LOSS in line]
        return json.dumps([line for line in lines if line["step"] <= last_step])

    ranking = Ranking(config.checkpoint.keep_best)
    for line in json.loads(multihost.agree("held-out losses", read_lines)):
        phase_index, _ = phase_of(config, line["step"] - 1)
        ranking.add(line["step"], phase_index, line)
    return ranking
