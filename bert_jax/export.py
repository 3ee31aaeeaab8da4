"""Exports a checkpoint to a directory in Hugging Face's or Google's format.

    python -m bert_jax.export --workdir=DIR --output=DIR2
        [--format=huggingface|google] [--dtype=float32|bfloat16] [--step=N]
        [--corpus_dir=DIR] [--push_to_hub=USER/NAME [--private] [--dry_run]]

DIR2 must be new or empty. It appears once the export has been read back, and its
weights are those of the run. It contains the weights, the tokenizer, a model card
(README.md) and SHA256SUMS.

--push_to_hub uploads DIR2 to a model repository of the Hugging Face Hub, which is
created if it does not exist, and tags the commit step-N. Log in first: hf auth login.
With --dry_run, the export is made and read back, but neither kept nor uploaded.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from absl import flags

from bert_jax import cli, digests, storage
from bert_jax.digests import SUMS_FILE
from bert_jax.errors import ConfigError
from bert_jax.interop import (
    files,
    google_tf1,
    hub_models,
    huggingface_write,
    model_card,
)
from bert_jax.loading import source as source_lib
from bert_jax.loading import trained_run as run_lib
from bert_jax.model import parameters
from bert_jax.training import evaluation

FORMATS = {"huggingface": huggingface_write.write, "google": google_tf1.write}
DTYPES = ("float32", "bfloat16")


class ExportError(Exception):
    """An exported file differs from the run when it is read back."""


def export(
    workdir: str,
    output: str,
    format_name: str,
    dtype: str = "float32",
    step: int | None = None,
    corpus_dir: str | None = None,
    to: hub_models.Target | None = None,
    is_dry_run: bool = False,
) -> None:
    """Exports a checkpoint of a run, by default the newest.

    Args:
      corpus_dir: directory of the run's corpus, if it was moved.
      to: where to upload the export; None to keep it on disk only.
      is_dry_run: whether to print what would be uploaded, and keep nothing.
    """
    with _destination(output, workdir, to, is_dry_run) as target:
        if to and not is_dry_run:
            hub_models.check_account()
        run = run_lib.open_run(workdir, step, corpus_dir)
        _write(target, workdir, run, format_name, dtype, to)
        if to and is_dry_run:
            print(hub_models.describe(target, to, run.step))
            return
    print(
        f"Exported step {run.step:,} to {output} ({format_name}, {dtype}). It was read"
        f" back, and has the run's weights. {output}/README.md says how to load it.",
        flush=True,
    )
    if to:
        url = hub_models.push(target, to, run.step)
        print(f"Pushed to {url}, tag {to.tag(run.step)}.")


@contextlib.contextmanager
def _destination(
    output: str, workdir: str, to: hub_models.Target | None, is_dry_run: bool
) -> Iterator[Path]:
    """Yields the path to write, which is uploaded at the end if the output is a URL.

    The path of a dry run is removed at the end.
    """
    used = f"--output={output} already exists; use a new directory"
    target, before = Path(output).absolute(), []
    if storage.is_remote(output):
        before = storage.files(output)
        if SUMS_FILE in before or any("/" in name for name in before):
            raise ConfigError(used)
    elif target.is_relative_to(Path(workdir).absolute()):
        raise ConfigError(
            f"--output={output} is inside --workdir={workdir}; use another directory"
        )
    elif os.path.lexists(target) and (
        target.is_symlink() or not target.is_dir() or any(target.iterdir())
    ):
        push = f", or push it as it is: {hub_models.upload(target, to)}" if to else ""
        raise ConfigError(f"{used}{push}")
    elif not is_dry_run:
        yield target
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield (directory := Path(scratch, target.name))
        if storage.is_remote(output) and not is_dry_run:
            # Files of an upload that failed may be there.
            if set(before) - set(storage.files(str(directory))):
                raise ConfigError(used)
            storage.upload(str(directory), output, last=[SUMS_FILE])


def _write(
    target: Path,
    workdir: str,
    run: run_lib.OpenedRun,
    format_name: str,
    dtype: str,
    to: hub_models.Target | None,
) -> None:
    """Writes the export, which appears when it is complete."""
    for name, array in parameters.by_name(run.params).items():
        if not np.isfinite(array).all():
            raise ConfigError(
                f"step {run.step} of {workdir} has NaN or infinity in {name}; export an"
                " older checkpoint with --step"
            )
    with contextlib.ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            tmp = stack.enter_context(files.new_directory(target))
        except OSError as error:
            raise ConfigError(
                f"--output={target}: {error.strerror}; use another directory"
            ) from None
        FORMATS[format_name](tmp, run.params, run.config, run.corpus.tokenizer, dtype)
        read_back(tmp, run, dtype)
        entropy = evaluation.unigram_entropy(run.corpus)
        model_card.plot(tmp, workdir, run.step, entropy)
        digests.write_sums(tmp)
        model_card.write(  # after the digests, because users edit it
            tmp, run.config, run.corpus, workdir, run.step, format_name, dtype, to
        )


def read_back(directory: Path, run: run_lib.OpenedRun, dtype: str) -> None:
    """Raises ExportError if an export has other weights than its run, in its dtype."""
    weights = parameters.by_name(run.params)
    source = source_lib.open_source(directory, f"the export in {directory}")
    arrays = source.read(weights.keys() & source.names.keys())
    for name, ours in weights.items():
        rounded = ours.astype(jnp.dtype(dtype)).astype(np.float32)
        if not np.array_equal(arrays.get(name, []), rounded):
            raise ExportError(f"{directory}: {name} differs from the run's weights")


def main() -> None:
    workdir, output = cli.require("workdir", "output")
    workdir = cli.directory("workdir", workdir)
    output = cli.directory("output", output)
    to = None
    if _PUSH_TO_HUB.value:
        to = hub_models.target(_PUSH_TO_HUB.value, _PRIVATE.value)
        if storage.is_remote(output):
            raise ConfigError(f"--output={output} must be local with --push_to_hub")
    elif _DRY_RUN.value or _PRIVATE.value is not None:
        name = "dry_run" if _DRY_RUN.value else "private"
        raise ConfigError(f"--{name} needs --push_to_hub=USER/NAME")
    export(
        workdir,
        output,
        _FORMAT.value,
        _DTYPE.value,
        _STEP.value,
        _CORPUS_DIR.value,
        to,
        _DRY_RUN.value,
    )


if __name__ == "__main__":
    cli.define_path("workdir", "directory of a training run")
    cli.define_path("output", "new directory to write")
    _FORMAT = flags.DEFINE_enum(
        "format", "huggingface", list(FORMATS), "format to write"
    )
    _DTYPE = flags.DEFINE_enum(
        "dtype", "float32", DTYPES, "dtype of the written weights"
    )
    _STEP = flags.DEFINE_integer(
        "step", None, "step of the checkpoint; default: the newest"
    )
    _CORPUS_DIR = cli.define_path(
        "corpus_dir", "directory of the run's corpus, if it was moved"
    )
    _PUSH_TO_HUB = flags.DEFINE_string(
        "push_to_hub",
        None,
        "model repository USER/NAME[@BRANCH] on the Hugging Face Hub to upload to",
    )
    _PRIVATE = flags.DEFINE_bool(
        "private",
        None,
        "whether a new repository on the Hub is private; default: public, or the"
        " default of the organization",
    )
    _DRY_RUN = flags.DEFINE_bool(
        "dry_run",
        False,
        "with --push_to_hub: list what would be sent, and keep and send nothing",
    )
    cli.run(main, __doc__)
