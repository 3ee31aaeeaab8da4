"""The checkpoint files of a workdir: listing, digests, verification and recovery.

This module does not use Orbax, so that process 0 can verify checkpoints before all
processes open them together.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from bert_jax import digests
from bert_jax.errors import ConfigError, CorruptError

DIRECTORY = "checkpoints"
CORRUPT_DIRECTORY = "corrupt_checkpoints"  # corrupt checkpoints are moved here
# Orbax writes these files when it commits a checkpoint, after SHA256SUMS is written:
# timestamps, and an empty file that only marks the checkpoint as complete.
STEP_METADATA = "_CHECKPOINT_METADATA"
COMMIT_MARK = "commit_success.txt"
UNFINISHED = ".orbax-checkpoint-tmp"  # suffix of a step's directory during its save


def _print(text: str) -> None:
    print(text, flush=True)


def directory_of(workdir: str, step: int) -> Path:
    return Path(workdir) / DIRECTORY / str(step)


def steps(workdir: str) -> list[int]:
    """Returns the steps of all complete checkpoints, in ascending order."""
    directory = Path(workdir) / DIRECTORY
    if not directory.is_dir():
        return []
    return sorted(int(p.name) for p in directory.iterdir() if p.name.isdigit())


def newest_step(workdir: str) -> int:
    """Returns the step of the newest complete checkpoint, 0 if there is none."""
    return max(steps(workdir), default=0)


def seal(directory: Path) -> None:
    """Writes the digests of a checkpoint that is about to be committed."""
    digests.write_sums(directory, _is_committed_later)


def _is_committed_later(name: str) -> bool:
    return name.rpartition("/")[2] in (STEP_METADATA, COMMIT_MARK)


def verify(workdir: str, step: int) -> list[str]:
    """Returns a description of each problem of a checkpoint, [] if it is valid."""
    directory = directory_of(workdir, step)
    # A file without a digest is a problem as well: Orbax reads any file that it finds.
    found = digests.verify(directory, _is_committed_later)
    return found + _verify_metadata(workdir, step)


def _verify_metadata(workdir: str, step: int) -> list[str]:
    try:
        json.loads((directory_of(workdir, step) / STEP_METADATA).read_text())
    except (FileNotFoundError, ValueError):
        return [f"{STEP_METADATA} is missing or corrupt"]
    return []


def check(workdir: str, step: int, remedy: str) -> None:
    """Raises CorruptError if a checkpoint is corrupt.

    Args:
      workdir: directory of a run.
      step: step of the checkpoint.
      remedy: what to do if there is a valid checkpoint; its step replaces {}.
    """
    problems = verify(workdir, step)
    if problems:
        valid = [s for s in steps(workdir) if s != step and not verify(workdir, s)]
        advice = remedy.format(valid[-1]) if valid else "restore it from a backup"
        raise CorruptError(
            f"{directory_of(workdir, step)} is corrupt: {_shorten(problems)}; {advice}"
        )


def recover(
    workdir: str,
    log: Callable[[str], None] = _print,
    on_found: Callable[[int], None] | None = None,
) -> int:
    """Returns the step of the newest valid checkpoint, 0 if no checkpoint was saved.

    Corrupt checkpoints after it are moved to CORRUPT_DIRECTORY. So are those before it
    whose metadata cannot be read, because Orbax would fail on them. The arrays of older
    checkpoints are verified when they are read.

    Args:
      workdir: directory of the run.
      log: called with a line for each checkpoint that is moved.
      on_found: called with the step, if there is one, before anything is moved.

    Raises:
      CorruptError: when there are checkpoints and all are corrupt. Nothing is moved,
        and the run does not start over.
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
                moved = _move_aside(workdir, bad)
                log(
                    f"checkpoint {bad:,} is corrupt ({_shorten(reasons)}): moved to"
                    f" {moved}, resuming from step {step:,}"
                )
            return step
        corrupt[step] = problems
    if not corrupt:
        return 0
    newest = max(corrupt)
    raise CorruptError(
        f"{Path(workdir) / DIRECTORY}: all {len(corrupt)} checkpoints are corrupt"
        f" ({newest}: {_shorten(corrupt[newest])}); restore one from a backup, or start"
        " over with a new --workdir"
    )


def ensure_space(workdir: str, step: int, needed_bytes: int) -> None:
    """Checks that there is space for a checkpoint, and frees some if necessary.

    If there is too little space, directories of unfinished saves are removed, so no
    save may be in progress.

    Raises:
      ConfigError: when there is too little space.
    """
    directory = Path(workdir) / DIRECTORY
    if shutil.disk_usage(directory).free < needed_bytes:
        for path in directory.glob(f"*{UNFINISHED}*"):
            shutil.rmtree(path)
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise ConfigError(no_space_message(workdir, step, needed_bytes))


def no_space_message(
    workdir: str, step: int, needed_bytes: int, is_over_quota: bool = False
) -> str:
    """Returns an error message for a full disk or an exhausted quota."""
    free = f"{shutil.disk_usage(workdir).free:,} bytes are free"
    reason = "the quota is used up" if is_over_quota else free
    return (
        f"step {step:,} cannot be saved in {Path(workdir) / DIRECTORY}: it needs"
        f" {needed_bytes:,} bytes, and {reason};"
        " earlier checkpoints are unchanged; free some space (or lower"
        " config.checkpoint.keep), then rerun the same command to resume from step"
        f" {newest_step(workdir):,}"
    )


def _move_aside(workdir: str, step: int) -> Path:
    target = Path(workdir) / CORRUPT_DIRECTORY / str(step)
    number = 1
    while target.exists():
        number += 1
        target = target.with_name(f"{step}-{number}")
    target.parent.mkdir(exist_ok=True)
    directory_of(workdir, step).rename(target)
    return target


def _shorten(problems: list[str]) -> str:
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    return problems[0] + more
