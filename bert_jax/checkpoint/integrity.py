"""The checkpoint files of a workdir: listing, digests, verification and recovery.

This module does not use Orbax, so that process 0 can verify checkpoints before all
processes open them together.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from bert_jax import digests, storage
from bert_jax.errors import ConfigError, CorruptError

DIRECTORY = "checkpoints"
CORRUPT_DIRECTORY = "corrupt_checkpoints"  # corrupt checkpoints are moved here
# Orbax writes these files when it commits a checkpoint, after SHA256SUMS is written:
# timestamps, and an empty file that only marks the checkpoint as complete.
STEP_METADATA = "_CHECKPOINT_METADATA"
COMMIT_MARK = "commit_success.txt"
UNFINISHED = ".orbax-checkpoint-tmp"  # suffix of a step's directory during its save


def directory_of(workdir: str, step: int) -> str:
    return os.path.join(workdir, DIRECTORY, str(step))


def steps(workdir: str) -> list[int]:
    """Returns the steps of all complete checkpoints, in ascending order.

    On a disk, the directory of a step appears when the checkpoint is complete; in a
    bucket, COMMIT_MARK does.
    """
    directory = os.path.join(workdir, DIRECTORY)
    saved = sorted(int(name) for name in storage.names(directory) if name.isdigit())
    if storage.is_remote(workdir):
        saved = [x for x in saved if storage.exists(f"{directory}/{x}/{COMMIT_MARK}")]
    return saved


def newest_step(workdir: str) -> int:
    """Returns the step of the newest complete checkpoint, 0 if there is none."""
    return max(steps(workdir), default=0)


def seal(directory: str) -> None:
    """Writes the digests of a checkpoint that is about to be committed."""
    digests.write_sums(directory, _is_committed_later)


def _is_committed_later(name: str) -> bool:
    return name.rpartition("/")[2] in (STEP_METADATA, COMMIT_MARK)


def verify(workdir: str, step: int) -> list[str]:
    """Returns a description of each problem of a checkpoint, [] if it is valid."""
    directory = directory_of(workdir, step)
    # A file without a digest is a problem as well: Orbax reads any file that it finds.
    problems = digests.verify(directory, _is_committed_later)
    return problems + _verify_metadata(workdir, step)


def _verify_metadata(workdir: str, step: int) -> list[str]:
    path = os.path.join(directory_of(workdir, step), STEP_METADATA)
    if storage.exists(path):
        text = storage.read(path)
        with contextlib.suppress(ValueError):
            json.loads(text)
            return []
    return [f"{STEP_METADATA} is missing or corrupt"]


def check(workdir: str, step: int, remedy: str) -> None:
    """Raises CorruptError if a checkpoint is corrupt.

    The remedy ends before the step of a valid one.
    """
    problems = verify(workdir, step)
    if problems:
        valid = [s for s in steps(workdir) if s != step and not verify(workdir, s)]
        advice = f"{remedy}{valid[-1]}" if valid else "restore it from a backup"
        raise CorruptError(
            f"{directory_of(workdir, step)} is corrupt: {_shorten(problems)}; {advice}"
        )


def recover(workdir: str, on_found: Callable[[int], None] | None = None) -> int:
    """Returns the step of the newest valid checkpoint, 0 if no checkpoint was saved.

    Corrupt checkpoints after it are moved to CORRUPT_DIRECTORY. So are those before it
    whose metadata cannot be read, because Orbax would fail on them. The arrays of older
    checkpoints are verified when they are read. `on_found` is called with the step
    before anything is moved. If all are corrupt, nothing is moved, and the CorruptError
    keeps the run from starting over.
    """
    corrupt = {}
    for step in reversed(steps(workdir)):
        problems = verify(workdir, step)
        if not problems:
            older = (s for s in steps(workdir) if s < step)
            corrupt |= {
                s: problems for s in older if (problems := _verify_metadata(workdir, s))
            }
            if on_found:
                on_found(step)
            for bad, reasons in corrupt.items():
                if bad < step and _is_half_deleted(workdir, bad):
                    storage.remove_directory(directory_of(workdir, bad))
                    continue
                moved = _move_aside(workdir, bad)
                print(
                    f"checkpoint {bad:,} is corrupt ({_shorten(reasons)}): moved to"
                    f" {moved}, resuming from step {step:,}",
                    flush=True,
                )
            return step
        corrupt[step] = problems
    if not corrupt:
        return 0
    newest, directory = max(corrupt), os.path.join(workdir, DIRECTORY)
    raise CorruptError(
        f"{directory}: all {len(corrupt)} checkpoints are corrupt"
        f" ({newest}: {_shorten(corrupt[newest])}); restore one from a backup, or start"
        " over with a new --workdir"
    )


def _is_half_deleted(workdir: str, step: int) -> bool:
    """Returns whether a run was killed while Orbax deleted a checkpoint for good.

    From four CPUs on, Orbax removes the files at the top first, of which every complete
    checkpoint has two. A link was made by the user.
    """
    path = directory_of(workdir, step)
    if os.path.islink(path) or os.path.isfile(path):
        return False
    top = (STEP_METADATA, digests.SUMS_FILE)
    return not any(storage.exists(os.path.join(path, name)) for name in top)


def ensure_space(workdir: str, step: int, needed_bytes: int) -> None:
    """Raises ConfigError if there is too little space for a checkpoint.

    Directories of unfinished saves are removed before, so no save may be in progress. A
    bucket has space.
    """
    if storage.is_remote(workdir):
        return
    directory = Path(workdir) / DIRECTORY
    if shutil.disk_usage(directory).free < needed_bytes:
        for path in directory.glob(f"*{UNFINISHED}*"):
            shutil.rmtree(path)
    if shutil.disk_usage(directory).free < needed_bytes:
        raise no_space(workdir, step, needed_bytes)


def no_space(
    workdir: str, step: int, needed_bytes: int, is_over_quota: bool = False
) -> ConfigError:
    """Returns the error for a full disk or an exhausted quota."""
    free = f"{shutil.disk_usage(workdir).free:,} bytes are free"
    reason = "the quota is used up" if is_over_quota else free
    return ConfigError(
        f"step {step:,} cannot be saved in {os.path.join(workdir, DIRECTORY)}: it needs"
        f" {needed_bytes:,} bytes, and {reason}; earlier checkpoints are unchanged;"
        " free some space, then rerun the same command to resume from step"
        f" {newest_step(workdir):,}"
    )


def _move_aside(workdir: str, step: int) -> str:
    parent = os.path.join(workdir, CORRUPT_DIRECTORY)
    target, number = os.path.join(parent, str(step)), 1
    while storage.exists(target):
        number += 1
        target = os.path.join(parent, f"{step}-{number}")
    storage.make_directory(parent)
    storage.move_directory(directory_of(workdir, step), target)
    return target


def _shorten(problems: list[str]) -> str:
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    return problems[0] + more
