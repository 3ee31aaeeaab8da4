"""The checkpoints of a workdir as files: which there are, which are sound.

Works without Orbax, so that process 0 can look before all open them together.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from bert_jax import digests
from bert_jax.errors import ConfigError, CorruptError

DIRECTORY = "checkpoints"
# Where damaged checkpoints are put out of the way, for a person to look at.
DAMAGED_DIRECTORY = "damaged_checkpoints"
# Orbax writes these when it makes a checkpoint count, after SHA256SUMS: times, and
# marks whose being there is all that is asked of them.
STEP_METADATA = "_CHECKPOINT_METADATA"
COMMIT_MARK = "commit_success.txt"
UNFINISHED = ".orbax-checkpoint-tmp"  # what follows the step in its name


def _say(text: str) -> None:
    print(text, flush=True)


def directory_of(workdir: str, step: int) -> Path:
    return Path(workdir) / DIRECTORY / str(step)


def steps(workdir: str) -> list[int]:
    """Returns the steps that have a complete checkpoint, in rising order."""
    directory = Path(workdir) / DIRECTORY
    if not directory.is_dir():
        return []
    return sorted(int(p.name) for p in directory.iterdir() if p.name.isdigit())


def newest_step(workdir: str) -> int:
    """Returns the newest step with a complete checkpoint, 0 when there is none."""
    return max(steps(workdir), default=0)


def seal(directory: Path) -> None:
    """Writes the digests of a checkpoint that is about to count."""
    digests.write_sums(directory, _comes_later)


def _comes_later(name: str) -> bool:
    return name.rpartition("/")[2] in (STEP_METADATA, COMMIT_MARK)


def damage(workdir: str, step: int) -> list[str]:
    """Returns what is wrong with a checkpoint's files, in words."""
    directory = directory_of(workdir, step)
    # What nobody wrote may be read all the same: Orbax takes the files that it finds.
    return digests.verify(directory, _comes_later) + _unreadable(workdir, step)


def _unreadable(workdir: str, step: int) -> list[str]:
    try:
        json.loads((directory_of(workdir, step) / STEP_METADATA).read_text())
    except (FileNotFoundError, ValueError):
        return [f"{STEP_METADATA} is missing or damaged"]
    return []


def check(workdir: str, step: int, remedy: str) -> None:
    """Raises CorruptError when a checkpoint is not what was written.

    Args:
      workdir, step: of the checkpoint.
      remedy: what to do with a sound one, whose step comes for {}.
    """
    wrong = damage(workdir, step)
    if wrong:
        others = [s for s in steps(workdir) if s != step and not damage(workdir, s)]
        advice = remedy.format(others[-1]) if others else "restore it from a copy"
        raise CorruptError(
            f"{directory_of(workdir, step)} is damaged: {_in_short(wrong)}; {advice}"
        )


def recover(
    workdir: str,
    say: Callable[[str], None] = _say,
    on_found: Callable[[int], None] | None = None,
) -> int:
    """Returns the step of the newest valid checkpoint, 0 when none was ever saved.

    Corrupt checkpoints after it are moved to DAMAGED_DIRECTORY. So are those before it
    whose metadata cannot be read, which Orbax would fail on; corrupt arrays of older
    checkpoints are found when they are read.

    Args:
      workdir: the run's workdir.
      say: called with a line for each checkpoint that is moved.
      on_found: called with the step, if there is one, before anything is moved.

    Raises:
      CorruptError: when there are checkpoints and all are corrupt; nothing is moved,
        and the run does not start over.
    """
    damaged = {}
    for step in reversed(steps(workdir)):
        wrong = damage(workdir, step)
        if not wrong:
            older = (s for s in steps(workdir) if s < step)
            damaged |= {s: wrong for s in older if (wrong := _unreadable(workdir, s))}
            if on_found:
                on_found(step)
            for bad, reasons in damaged.items():
                moved = _put_away(workdir, bad)
                say(
                    f"checkpoint {bad:,} is damaged ({_in_short(reasons)}): moved to"
                    f" {moved}, going on from step {step:,}"
                )
            return step
        damaged[step] = wrong
    if not damaged:
        return 0
    newest = max(damaged)
    raise CorruptError(
        f"{Path(workdir) / DIRECTORY}: none of {len(damaged)} checkpoints is sound"
        f" ({newest}: {_in_short(damaged[newest])}); restore one from a copy, or give"
        " another --workdir to begin anew"
    )


def find_room(workdir: str, step: int, needed_bytes: int) -> None:
    """Makes sure that a checkpoint of a size can be written.

    What earlier saves left unfinished is removed if the room is needed; none may be
    under way.

    Raises:
      ConfigError: when there is too little.
    """
    directory = Path(workdir) / DIRECTORY
    if shutil.disk_usage(directory).free < needed_bytes:
        for path in directory.glob(f"*{UNFINISHED}*"):
            shutil.rmtree(path)
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise ConfigError(no_room(workdir, step, needed_bytes))


def no_room(workdir: str, step: int, needed_bytes: int, is_quota: bool = False) -> str:
    """Returns what to tell when a disk is full, or what this user may have of it."""
    free = f"{shutil.disk_usage(workdir).free:,} are free"
    return (
        f"step {step:,} cannot be saved in {Path(workdir) / DIRECTORY}: it needs"
        f" {needed_bytes:,} bytes and {'the quota is used up' if is_quota else free};"
        " earlier checkpoints are as"
        " they were: make room (config.checkpoint.keep may be lower), then the same"
        f" command goes on from step {newest_step(workdir):,}"
    )


def _put_away(workdir: str, step: int) -> Path:
    target = Path(workdir) / DAMAGED_DIRECTORY / str(step)
    number = 1
    while target.exists():
        number += 1
        target = target.with_name(f"{step}-{number}")
    target.parent.mkdir(exist_ok=True)
    directory_of(workdir, step).rename(target)
    return target


def _in_short(wrong: list[str]) -> str:
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return wrong[0] + more
