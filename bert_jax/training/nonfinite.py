"""Steps that were not finite: told and recorded; too many in a row end the run.

The step itself leaves out their update, see step.py.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import errors, storage
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.model.parameters import path_name
from bert_jax.monitoring import writer
from bert_jax.phases import Position, batch_of
from bert_jax.training.step import TrainState

BAD_STEPS_FILE = "bad_steps.jsonl"
# What a record holds of a step's metrics, where the config has them.
RECORDED = ("loss", "masked_lm_loss", "next_sentence_loss", "grad_norm")


class Guard:
    """Looks at the metrics of steps as they come from the devices."""

    def __init__(
        self,
        config: ExperimentConfig,
        corpus: Corpus,
        place: Position,
        first_step: int,
        workdir: str | None,
        say: Callable[[str], None],
    ):
        """Prepares for the steps after `first_step`.

        Records go to `workdir`, or nowhere where that is None. Those of steps that will
        be taken again are dropped, but for what a rollback left out.
        """
        self._config, self._corpus, self._place = config, corpus, place
        self._path = Path(workdir) / BAD_STEPS_FILE if workdir else None
        self._say = say
        if self._path and self._path.is_file():
            kept = [
                record
                for record in writer.complete_lines(self._path)
                if record["step"] <= first_step
                or record.get("rollbacks", 0) < place.rollbacks
            ]
            text = "".join(json.dumps(record) + "\n" for record in kept)
            storage.write(str(self._path), text.encode())

    def look(self, last_step: int, metrics: Sequence[dict[str, Any]]) -> None:
        """Takes the metrics of the steps up to `last_step`, in order.

        Raises:
          DivergedError: when config.guard.max_bad_steps in a row were not finite.
        """
        first_step = last_step - len(metrics) + 1
        bad = {
            step: found
            for step, found in enumerate(metrics, start=first_step)
            if found["bad_steps_in_row"]
        }
        if not bad:
            return
        self._record(bad)
        names = f"step {min(bad):,}" if len(bad) == 1 else f"{len(bad):,} steps"
        first = bad[min(bad)]
        self._say(
            f"{names} not finite (loss {first['loss']:.4g}, gradient"
            f" {first['grad_norm']:.4g}): no update, recorded in {BAD_STEPS_FILE}"
        )
        for step, found in bad.items():
            in_row = int(found["bad_steps_in_row"])
            if in_row >= self._config.guard.max_bad_steps:
                raise errors.DivergedError(
                    step,
                    f"the loss or the gradient was not finite in the last {in_row}"
                    " steps",
                )

    def _record(self, bad: dict[int, dict[str, Any]]) -> None:
        if self._path is None:
            return
        with self._path.open("a") as file:
            for step, found in bad.items():
                file.write(json.dumps(self._entry(step, found)) + "\n")

    def _entry(self, step: int, found: dict[str, Any]) -> dict[str, Any]:
        phase_index, batch = batch_of(self._config, step - 1, self._place.skips)
        rows = pipeline.places(
            self._corpus,
            self._config,
            seed=self._config.seed,
            phase_index=phase_index,
            step=batch,
        )
        return {
            "step": step,
            "phase": phase_index,
            "batch": batch,
            "rollbacks": self._place.rollbacks,
            # As text: JSON has no infinity, and no number that is none.
            **{
                name: str(np.float32(found[name])) for name in RECORDED if name in found
            },
            "bad_steps_in_row": int(found["bad_steps_in_row"]),
            "rows": [
                {"shard": shard, "epoch": epoch, "first": first, "stop": stop}
                for shard, epoch, first, stop in rows
            ],
        }


def check_finite(step: int, state: TrainState) -> None:
    """Looks at what is to be saved: a finite gradient can still overflow a moment.

    Raises:
      DivergedError: when a parameter or a moment is not finite.
    """
    if not _is_finite((state.params, state.opt_state)):
        raise errors.DivergedError(step, "parameters or moments are not finite")


@jax.jit
def _is_finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def diagnosis(params: Any, workdir: str) -> str:
    """Returns what may be wrong: parameters that are not finite, or none of them."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    are_finite = jax.jit(
        lambda params: [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]
    )(params)
    names = [
        path_name(path)
        for (path, _), is_finite in zip(leaves, are_finite, strict=True)
        if not is_finite
    ]
    if not names:
        return (
            "all parameters are finite, so it overflows on the way; try a lower"
            " config.optimizer.learning_rate or more warmup_steps, and look at the rows"
            f" with `python -m bert_jax.inspect_batch --workdir={workdir} --step=N`"
        )
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} parameters are not finite themselves: {shown}"
