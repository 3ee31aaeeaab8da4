"""Where a run resumes: its workdir, its newest checkpoint, and its last rollback.

A rollback skips the batches since a checkpoint, and that checkpoint was saved without
those skips. Until the next save, only ROLLBACK_FILE has them. A resumed run that
diverges again would not always skip the same batches: the rollback may have passed over
a corrupt checkpoint, which the resumed run writes anew.
"""

import dataclasses
import json
import os

from bert_jax import storage
from bert_jax.checkpoint import integrity
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.distributed import multihost
from bert_jax.errors import CorruptError, DivergedError
from bert_jax.phases import Position, skipping

ROLLBACK_FILE = "rollback.json"


def is_begun(workdir: str, config: ExperimentConfig) -> bool:
    """Returns whether there is a checkpoint to resume from; checks the config."""
    workdir_lib.check_config(workdir, config)
    found = bool(integrity.steps(workdir))
    multihost.check_same(
        "begun",
        str(found),
        f"--workdir={workdir} is not the same directory on all hosts; use a directory"
        " that all hosts share",
    )
    return found


def lock_workdir(workdir: str, config: ExperimentConfig) -> int:
    """Creates and locks the workdir, and moves corrupt checkpoints aside.

    Returns the step of the newest valid checkpoint, 0 for a new run.
    """
    multihost.make_shared("workdir", workdir)

    def lock() -> str:
        workdir_lib.lock(workdir)
        workdir_lib.check_config(workdir, config)
        return str(integrity.recover(workdir))

    return int(multihost.agree("first step", lock))


def begin_workdir(workdir: str, config: ExperimentConfig, first_step: int) -> None:
    """Writes the config; a run at step 0 also removes an old rollback record."""
    if multihost.is_first():
        if not first_step:
            storage.remove(_rollback_file(workdir))
        workdir_lib.write_config(workdir, config)


# ------------------------------------------------------------------------- rollbacks


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
        lambda step: record_rollback(workdir, step, after(step)),
    )
    if not first_step:
        raise error
    print(
        f"{error}; rolling back to step {first_step:,} and skipping the batches of the"
        f" {error.step - first_step:,} steps since",
        flush=True,
    )
    return first_step, after(first_step)


def record_rollback(workdir: str, step: int, position: Position) -> None:
    """Records a rollback to the checkpoint of `step` and the position after it."""
    record = {"step": step, **dataclasses.asdict(position)}
    storage.write(_rollback_file(workdir), (json.dumps(record) + "\n").encode())


def with_rollback(workdir: str, step: int, position: Position) -> Position:
    """Returns the position to resume at: with the skips of a recorded rollback.

    All processes call this together. `position` is that in the checkpoint of `step`.
    """
    path = _rollback_file(workdir)

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
        raise CorruptError(
            f"{path} is corrupt; restore it from a backup, or remove it to resume"
            " without the rollback that it records"
        ) from None
    # A checkpoint that was saved after the rollback contains its skips. A checkpoint of
    # a later step than the restored one belongs to the undone steps.
    is_newer = recorded.rollbacks > position.rollbacks
    return recorded if is_newer and step <= recorded_step else position


def _rollback_file(workdir: str) -> str:
    return os.path.join(workdir, ROLLBACK_FILE)
