"""Reports and records steps that are not finite; rolls back after too many in a row.

The train step itself skips their update, see step.py.
"""

import dataclasses
import json
import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import errors, storage
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.distributed import multihost
from bert_jax.monitoring import writer
from bert_jax.phases import Position, batch_of, skipping
from bert_jax.training.step import TrainState

BAD_STEPS_FILE = "bad_steps.jsonl"
# The metrics of a step that are recorded, if the config has them.
RECORDED = ("loss", "masked_lm_loss", "next_sentence_loss", "z_loss", "grad_norm")


@dataclasses.dataclass(frozen=True)
class Guard:
    """Checks the metrics of steps when they are fetched from the devices.

    Records of steps that will be repeated are dropped; records of steps that a rollback
    undid are kept.
    """

    config: ExperimentConfig
    corpus: Corpus
    position: Position
    first_step: int  # the checked steps follow it
    workdir: str | None  # None: nothing is recorded
    log: Callable[[str], None]  # prints a line if some of the steps are not finite

    def __post_init__(self) -> None:
        if self.workdir:
            writer.keep_lines(
                os.path.join(self.workdir, BAD_STEPS_FILE),
                lambda record: (
                    record["step"] <= self.first_step
                    or record.get("rollbacks", 0) < self.position.rollbacks
                ),
            )

    def check(self, last_step: int, metrics: Sequence[dict[str, Any]]) -> None:
        """Reports and records the steps up to `last_step` that are not finite."""
        first_step = last_step - len(metrics) + 1
        bad = {
            step: values
            for step, values in enumerate(metrics, start=first_step)
            if values["bad_steps_in_row"]
        }
        if not bad:
            return
        if self.workdir:
            records = writer.AppendOnlyFile(os.path.join(self.workdir, BAD_STEPS_FILE))
            for step, values in bad.items():
                records.write((json.dumps(self._record(step, values)) + "\n").encode())
            records.close()
        names = f"step {min(bad):,}" if len(bad) == 1 else f"{len(bad):,} steps"
        first = bad[min(bad)]
        self.log(
            f"{names} not finite (loss {first['loss']:.4g}, gradient norm"
            f" {first['grad_norm']:.4g}): update skipped, recorded in {BAD_STEPS_FILE}"
        )
        for step, values in bad.items():
            in_row = int(values["bad_steps_in_row"])
            if in_row >= self.config.guard.max_bad_steps:
                what = "the loss or the gradient was not finite in the last"
                raise errors.DivergedError(step, f"{what} {in_row} steps")

    def _record(self, step: int, metrics: dict[str, Any]) -> dict[str, Any]:
        phase_index, batch = batch_of(self.config, step - 1, self.position.skips)
        given = {"seed": self.config.seed, "phase_index": phase_index, "step": batch}
        rows = pipeline.places(self.corpus, self.config, **given)
        return {
            "step": step,
            "phase": phase_index,
            "batch": batch,
            "rollbacks": self.position.rollbacks,
            # As strings, because JSON has no NaN or infinity.
            **{x: str(np.float32(metrics[x])) for x in RECORDED if x in metrics},
            "bad_steps_in_row": int(metrics["bad_steps_in_row"]),
            "rows": [
                {"shard": shard, "epoch": epoch, "first": first, "stop": stop}
                for shard, epoch, first, stop in rows
            ],
        }


def check_finite(step: int, state: TrainState) -> None:
    """Raises DivergedError if a parameter or a moment is not finite.

    A finite gradient can overflow a moment.
    """
    if not _is_finite((state.params, state.opt_state, state.average)):
        raise errors.DivergedError(step, "parameters or moments are not finite")


def diagnose(params: Any, workdir: str, step: int) -> str:
    """Returns a likely cause: parameters that are not finite, or an overflow."""
    if not _is_finite(params):
        return "parameters are not finite"
    return (
        "all parameters are finite, so an activation or a gradient overflowed; try a"
        " lower config.optimizer.learning_rate or more config.optimizer.warmup_steps in"
        " a new --workdir, and inspect the rows with: python -m bert_jax.inspect_batch"
        f" {shlex.quote(f'--workdir={workdir}')} --step={step}"
    )


@jax.jit
def _is_finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


# ------------------------------------------------------------------------- rollbacks
# A rollback skips the batches since a checkpoint, and that checkpoint was saved without
# those skips. Until the next save, only ROLLBACK_FILE has them. A resumed run that
# diverges again would not always skip the same batches: the rollback may have passed
# over a corrupt checkpoint, which the resumed run writes anew.


def roll_back(
    config: ExperimentConfig,
    workdir: str,
    checkpoints: Checkpoints,
    position: Position,
    error: errors.DivergedError,
) -> tuple[int, Position]:
    """Returns the step of the last valid checkpoint and a position that skips ahead.

    The position skips the batches of all steps since that checkpoint. It is recorded in
    the workdir before any corrupt checkpoint is moved, so that the run resumes the same
    way whenever it is killed. Raises the error if config.guard.max_rollbacks is reached
    or there is no checkpoint.
    """
    checkpoints.wait()
    if position.rollbacks >= config.guard.max_rollbacks:
        raise error

    def after(first_step: int) -> Position:
        return dataclasses.replace(
            position,
            skips=skipping(config, position.skips, first_step, error.step),
            rollbacks=position.rollbacks + 1,
        )

    first_step = checkpoints.recover(
        f"rollback {position.rollbacks + 1}",
        lambda step: record_rollback(workdir, step, after(step)),
    )
    if not first_step:
        raise error
    return first_step, after(first_step)


def record_rollback(workdir: str, step: int, position: Position) -> None:
    """Records a rollback to the checkpoint of `step` and the position after it."""
    record = {"step": step, **dataclasses.asdict(position)}
    path = os.path.join(workdir, workdir_lib.ROLLBACK_FILE)
    storage.write(path, (json.dumps(record) + "\n").encode())


def with_rollback(workdir: str, step: int, position: Position) -> Position:
    """Returns the position to resume at: with the skips of a recorded rollback.

    All processes call this together. `position` is that in the checkpoint of `step`.
    """
    path = os.path.join(workdir, workdir_lib.ROLLBACK_FILE)

    def read() -> str:
        if not storage.exists(path):
            return ""
        return storage.read(path).decode(errors="replace")

    text = multihost.agree("rollback record", read)
    if not text:
        return position
    try:
        record = json.loads(text)
        recorded_step, recorded = int(record["step"]), Position.from_json(record)
    except (KeyError, TypeError, ValueError):
        raise errors.CorruptError(
            f"{path} is corrupt; restore it from a backup, or remove it to resume"
            " without the rollback that it records"
        ) from None
    # A checkpoint that was saved after the rollback contains its skips. A checkpoint of
    # a later step than the restored one belongs to the undone steps.
    is_newer = recorded.rollbacks > position.rollbacks
    return recorded if is_newer and step <= recorded_step else position
