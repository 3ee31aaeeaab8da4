"""Lists or verifies the checkpoints of a run.

python -m bert_jax.checkpoint list --workdir=DIR
python -m bert_jax.checkpoint verify --workdir=DIR
"""

import os
import time

import rich.console
import rich.table

from bert_jax import cli, storage
from bert_jax.checkpoint import integrity
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.monitoring import writer

# A checkpoint that looks corrupt because a run is deleting it is gone after this time.
DELETION_SECS = 2.0
# Held-out losses by their names in metrics.jsonl. The total is the sum of the losses of
# all objectives, by which config.checkpoint.keep_best ranks.
LOSSES = {
    "eval_masked_lm_loss": "held-out MLM loss",
    writer.HELD_OUT_LOSS: "total loss",
}


def show(workdir: str, is_verified: bool) -> list[int]:
    """Prints a line for each checkpoint, and returns the steps of corrupt ones."""
    steps = integrity.steps(workdir)
    if not steps:
        raise ConfigError(
            f"--workdir={workdir} has no checkpoint; give the directory of a run that"
            " saved one"
        )
    table = rich.table.Table(box=None)
    for name in ("step", "MiB", "saved", *LOSSES.values(), "files"):
        table.add_column(name, justify="left" if name == "files" else "right")
    corrupt: dict[int, list[str]] = {}
    lines = writer.read(workdir)
    evaluated = {line["step"]: line for line in lines if writer.HELD_OUT_LOSS in line}
    for step in steps:
        try:
            problems = integrity.verify(workdir, step) if is_verified else []
            row = _row(workdir, step, evaluated.get(step, {}))
        except FileNotFoundError:  # the run deleted it in the meantime
            continue
        if problems:
            time.sleep(DELETION_SECS)
            if step not in integrity.steps(workdir):
                continue
            corrupt[step] = problems
        result = (", CORRUPT" if problems else ", verified") if is_verified else ""
        table.add_row(*row[:-1], row[-1] + result)
    console = rich.console.Console(width=1000, soft_wrap=True, highlight=False)
    console.print(table)
    for step, problems in corrupt.items():
        console.print(f"{step:,}: {'; '.join(problems)}")
    return list(corrupt)


def _row(workdir: str, step: int, evaluated: dict[str, float | None]) -> list[str]:
    directory = integrity.directory_of(workdir, step)
    paths = [os.path.join(directory, name) for name in storage.files(directory)]
    files = [each for each in storage.stat_all(paths) if each]
    if not files:
        raise FileNotFoundError(directory)
    saved = time.localtime(max(each.changed_ns for each in files) / 1e9)
    return [
        f"{step:,}",
        f"{sum(each.num_bytes for each in files) / 2**20:,.1f}",
        time.strftime("%F %T", saved),
        *("" if x is None else f"{x:.4f}" for x in map(evaluated.get, LOSSES)),
        f"{len(files)}",
    ]


def main(arguments: list[str]) -> None:
    verb, *rest = arguments or ["nothing"]
    if verb not in ("list", "verify"):
        raise ConfigError(f"expected list or verify, not {verb}; see --help")
    if rest:
        raise ConfigError(f"unexpected argument {rest[0]!r}; write --workdir={rest[0]}")
    (workdir,) = cli.require("workdir")
    corrupt = show(workdir, verb == "verify")
    if corrupt:
        raise CorruptError(
            f"{len(corrupt)} of the checkpoints in {workdir} are corrupt; rerun"
            " train to move them aside and resume from the newest valid checkpoint"
        )


if __name__ == "__main__":
    cli.define_path("workdir", "directory of a run")
    cli.run(main, __doc__, takes_arguments=True)
