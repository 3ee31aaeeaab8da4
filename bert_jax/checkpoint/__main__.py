"""Lists or verifies the checkpoints of a run.

python -m bert_jax.checkpoint list --workdir=DIR
python -m bert_jax.checkpoint verify --workdir=DIR
"""

import time

import rich.console
import rich.table
from absl import flags

from bert_jax import cli
from bert_jax.checkpoint import integrity
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.monitoring import writer

# A step that is damaged because a run is deleting it is gone after so long.
DELETION_SECS = 2.0


def show(workdir: str, is_verified: bool) -> list[int]:
    """Prints a line for each checkpoint and returns the steps of damaged ones.

    Args:
      workdir: of a run.
      is_verified: whether every file is compared with its digest.
    """
    steps = integrity.steps(workdir)
    if not steps:
        raise ConfigError(f"--workdir={workdir} has no checkpoint")
    table = rich.table.Table(box=None)
    for name in ("step", "MiB", "saved", "held-out loss", "files"):
        table.add_column(name, justify="left" if name == "files" else "right")
    damaged: dict[int, list[str]] = {}
    losses = {
        line["step"]: line[writer.HELD_OUT_LOSS]
        for line in writer.read(workdir)
        if writer.HELD_OUT_LOSS in line
    }
    for step in steps:
        try:
            wrong = integrity.damage(workdir, step) if is_verified else []
            row = _row(workdir, step, losses.get(step))
        except FileNotFoundError:  # a run deletes old ones meanwhile
            continue
        if wrong:
            time.sleep(DELETION_SECS)
            if step not in integrity.steps(workdir):
                continue
        if wrong:
            damaged[step] = wrong
        sound = (", DAMAGED" if wrong else ", sound") if is_verified else ""
        table.add_row(*row[:-1], row[-1] + sound)
    console = rich.console.Console(soft_wrap=True, highlight=False)
    console.print(table)
    for step, wrong in damaged.items():
        console.print(f"{step:,}: {'; '.join(wrong)}")
    return list(damaged)


def _row(workdir: str, step: int, loss: float | None) -> list[str]:
    directory = integrity.directory_of(workdir, step)
    sizes = [p.stat().st_size for p in directory.rglob("*") if p.is_file()]
    saved = time.strftime("%F %T", time.localtime(directory.stat().st_mtime))
    return [
        f"{step:,}",
        f"{sum(sizes) / 2**20:,.1f}",
        saved,
        "" if loss is None else f"{loss:.4f}",
        f"{len(sizes)}",
    ]


def main(arguments: list[str]) -> None:
    if len(arguments) != 1 or arguments[0] not in ("list", "verify"):
        given = " ".join(arguments) or "nothing"
        raise ConfigError(f"say what to do, list or verify, not {given}; see --help")
    if _WORKDIR.value is None:
        raise ConfigError("--workdir is missing; give the directory of a run")
    damaged = show(_WORKDIR.value, arguments[0] == "verify")
    if damaged:
        raise CorruptError(
            f"{len(damaged)} of the checkpoints in {_WORKDIR.value} are damaged; train"
            " puts damaged ones aside and goes on from the newest sound one"
        )


if __name__ == "__main__":
    _WORKDIR = flags.DEFINE_string("workdir", None, "the directory of a run")
    cli.run_with_rest(main, __doc__, known_only=False)
