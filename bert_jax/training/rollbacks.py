"""Rolls a diverged run back, and records the rollback for a run that resumes.

A rollback skips the batches since a checkpoint, and that checkpoint was saved without
those skips. Until the next save, only this record has them. A resumed run that
diverges again would not always skip the same batches: the rollback may have passed over
a corrupt checkpoint, which the resumed run writes anew.
"""

import dataclasses
import json
import os

from bert_jax import storage
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.distributed import multihost
from bert_jax.errors import CorruptError, DivergedError
from bert_jax.phases import Position, skipping

ROLLBACK_FILE = "rollback.json"


def roll_back(
    config: ExperimentConfig,
    workdir: str,
    checkpoints: Checkpoints,
    position: Position,
    error: DivergedError,
) -> tuple[int, Position]:
    """Returns the step of the last valid checkpoint and a position that skips ahead.

    The position skips the batches of all steps since that checkpoint. It is recorded in
    the workdir before any corrupt checkpoint is moved, so that the run resumes the same
    way whenever it is killed.

    Raises:
      DivergedError: the given one, when config.guard.max_rollbacks is reached or there
        is no checkpoint.
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
        lambda step: write(workdir, step, after(step)),
    )
    if not first_step:
        raise error
    print(
        f"{error}; rolling back to step {first_step:,} and skipping the batches of the"
        f" {error.step - first_step:,} steps since",
        flush=True,
    )
    return first_step, after(first_step)


def write(workdir: str, step: int, position: Position) -> None:
    """Records a rollback to the checkpoint of `step` and the position after it."""
    record = {"step": step, **dataclasses.asdict(position)}
    storage.write(_path(workdir), (json.dumps(record) + "\n").encode())


def clear(workdir: str) -> None:
    """Removes the record; call it when a run starts at step 0."""
    storage.remove(_path(workdir))


def resumed(workdir: str, step: int, position: Position) -> Position:
    """Returns the position to resume at, with the skips of a recorded rollback.

    All processes call this together.

    Args:
      step: the step of the checkpoint to resume from.

    Raises:
      CorruptError: when the record is corrupt.
    """
    text = multihost.agree("rollback record", lambda: _text(workdir))
    if not text:
        return position
    try:
        # Earlier records have no digest of the corpus.
        record = {"corpus_sha256": position.corpus_sha256} | json.loads(text)
        recorded_step, recorded = int(record["step"]), Position.from_json(record)
    except (KeyError, TypeError, ValueError):
        raise CorruptError(
            f"{_path(workdir)} is corrupt; restore it from a backup, or remove it to"
            " resume without the rollback that it records"
        ) from None
    # A checkpoint that was saved after the rollback contains its skips. A checkpoint of
    # a later step than the restored one belongs to the undone steps.
    is_newer = recorded.rollbacks > position.rollbacks
    return recorded if is_newer and step <= recorded_step else position


def _path(workdir: str) -> str:
    return os.path.join(workdir, ROLLBACK_FILE)


def _text(workdir: str) -> str:
    path = _path(workdir)
    return storage.read(path).decode(errors="replace") if storage.exists(path) else ""
