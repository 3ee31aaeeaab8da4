"""Shows the rows of a training step, as text and as an HTML page.

    python -m bert_jax.inspect_batch --config=configs/X.py|--workdir=DIR --step=N
        [--rows=N] [--html=FILE]

Steps are numbered from 1, as in the log of `train`. For each row, shows its tokens with
their segments, masked tokens and their replacements, pair boundaries, labels, and the
documents that the segments are from. Prepares a small corpus if it does not exist yet.
With --workdir, uses the config of that run and skips the batches that the run skipped.
"""

from collections.abc import Sequence

from absl import flags

from bert_jax import cli, storage
from bert_jax.checkpoint import integrity
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import build
from bert_jax.distributed import devices
from bert_jax.errors import ConfigError
from bert_jax.inspect_batch import page
from bert_jax.inspect_batch import rows as rows_lib
from bert_jax.loading import init_from, new_run
from bert_jax.phases import Skips
from bert_jax.training import rollbacks


def read_run(workdir: str) -> tuple[ExperimentConfig, Skips]:
    """Returns the config of a run and the batches that it has skipped so far."""
    config = workdir_lib.config_of_run(workdir, f"--workdir={workdir}")
    newest = integrity.newest_step(workdir)
    if not newest:
        return config, ()
    position = Checkpoints(workdir).position(newest)
    return config, rollbacks.with_rollback(workdir, newest, position).skips


def as_text(step: rows_lib.Step, rows: Sequence[rows_lib.Row]) -> str:
    lines = [*rows_lib.summary(step), "input<=target is a predicted token"]
    for row in rows:
        padding = f", {row.num_padding} padding tokens" if row.num_padding else ""
        place = f"{row.number} of {len(step.rows)}: {row.place}"
        lines += ["", f"row {place}{padding}"]
        for number, pair in enumerate(row.pairs, start=1):
            lines.append(f"  pair {number}: {pair.label}")
            for name, excerpt in zip("AB", pair.segments, strict=False):
                lines.append(f"    {name} {excerpt.place} {excerpt.beginning}")
            tokens = (
                f"{x.piece}<={x.original}" if x.mask else x.piece for x in pair.tokens
            )
            lines.append(f"    {' '.join(tokens)}")
    return "\n".join(lines)


def main() -> None:
    # Orbax opens devices, and a running job may be using the accelerator.
    devices.use_cpu()
    if _WORKDIR.value:
        cli.exclude("workdir", "config")
        config, skips = read_run(_WORKDIR.value)
    else:
        config = new_run.complete(cli.load_values(_CONFIG), cli.given_keys())
        skips = ()
    if not 1 <= _STEP.value <= config.num_steps:
        raise ConfigError(
            f"--step={_STEP.value} is not a step of the run; give a step from 1 to"
            f" {config.num_steps}"
        )
    html = _HTML.value and cli.output_file("html", _HTML.value, [".html"])
    corpus = build.find_corpus(config, init_from.tokenizer_of_corpus(config))
    step = rows_lib.read_step(corpus, config, _STEP.value, skips)
    rows = step.rows[: _ROWS.value]
    print(as_text(step, rows))
    if html:
        storage.write(str(html), page.page(step, rows).encode())
        print(f"\npage: {_HTML.value}")


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    _WORKDIR = cli.define_path(
        "workdir", "directory of a training run, instead of --config"
    )
    _STEP = flags.DEFINE_integer("step", 1, "step number, as in the log of train")
    _ROWS = flags.DEFINE_integer(
        "rows", 8, "number of rows of the batch to show", lower_bound=1
    )
    _HTML = cli.define_path("html", "file to write an HTML page to")
    cli.run(main, __doc__)
