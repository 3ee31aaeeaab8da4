"""Checkpoint -> a directory that other software loads.

    python -m bert_jax.export --workdir=DIR --output=DIR2
        [--format=huggingface|google] [--dtype=float32|bfloat16] [--step=N]
        [--corpus_dir=DIR]

DIR2 must not exist or be empty; it appears when it is complete, and after it was read
back and found to give the run's own logits. With the weights and the tokenizer come a
model card (README.md) and SHA256SUMS.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx

from bert_jax import cli
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.errors import ConfigError
from bert_jax.interop import files, google_tf1, huggingface_write, model_card
from bert_jax.loading import initialize
from bert_jax.loading import run as run_lib
from bert_jax.model import parameters

FORMATS = {"huggingface": huggingface_write.write, "google": google_tf1.write}
# Of a head's largest logit. Nothing is lost in float32; in bfloat16 each weight is off
# by up to 1/512 of itself, and the layers add that up.
MAX_DIFFERENCE = {"float32": 1e-5, "bfloat16": 5e-2}


class ExportError(Exception):
    """What was written is not what was to be written."""


def export(
    workdir: str,
    output: str,
    format_name: str,
    dtype: str = "float32",
    step: int | None = None,
    corpus_dir: str | None = None,
) -> None:
    """Writes a checkpoint of the run, see `run.open_run`.

    Raises:
      ConfigError: when the output exists or there is no such checkpoint.
      ExportError: when what was written, read back, is another model.
    """
    target = Path(output).expanduser().absolute()
    is_new = not os.path.lexists(target)
    is_empty = target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    if not is_new and not is_empty:
        raise ConfigError(f"--output={output} exists already; give a new directory")
    if target.is_relative_to(Path(workdir).expanduser().absolute()):
        raise ConfigError(
            f"--output={output} is in the run's own directory; give another"
        )
    run = run_lib.open_run(workdir, step, corpus_dir)
    for name, array in parameters.by_name(run.params).items():
        if not np.isfinite(array).all():
            raise ConfigError(
                f"step {run.step} of {workdir} has NaN or infinity in {name}; export an"
                " older one with --step"
            )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        tmp = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
    except OSError as error:
        raise ConfigError(
            f"--output={output}: {error.strerror}; give another directory"
        ) from None
    try:
        FORMATS[format_name](tmp, run.params, run.config, run.corpus.tokenizer, dtype)
        difference = read_back(tmp, run, dtype)
        files.write_digests(tmp)
        model_card.write(  # without a digest: people edit it
            tmp, run.config, run.corpus, workdir, run.step, format_name, dtype
        )
        tmp.chmod(0o755)  # mkdtemp keeps it to its owner
        os.replace(tmp, target)
    except BaseException:
        shutil.rmtree(tmp)
        raise
    print(
        f"Exported step {run.step:,} to {output}, {format_name} in {dtype}. Read back,"
        f" its logits are the run's{f' within {difference:.1g}' if difference else ''}."
        f" {output}/README.md says how to load it."
    )


def read_back(directory: Path, run: run_lib.Run, dtype: str) -> float:
    """Returns the largest difference of logits between an export and its run.

    Raises:
      ExportError: when a weight is not the run's rounded to the dtype, or logits are
        further apart than that allows.
    """
    arrays = initialize.open_directory(directory, run.config).read()
    for name, ours in parameters.by_name(run.params).items():
        rounded = ours.astype(jnp.dtype(dtype)).astype(np.float32)
        if not np.array_equal(arrays.get(name, []), rounded):
            raise ExportError(f"{directory}: {name} is not what was written")
    forward = logits_of_random_pairs(run)
    expected, found = forward(run.params), forward(parameters.place(run.params, arrays))
    difference = 0.0
    for ours, theirs in zip(expected, found, strict=True):
        off = float(np.max(np.abs(ours - theirs)))
        if not off <= MAX_DIFFERENCE[dtype] * float(np.max(np.abs(ours))):
            raise ExportError(f"{directory}: its logits differ from the run's by {off}")
        difference = max(difference, off)
    return difference


def logits_of_random_pairs(
    run: run_lib.Run,
) -> Callable[[Any], tuple[np.ndarray, np.ndarray]]:
    """Returns params -> both heads' float32 logits of fixed pairs with padding."""
    rows = mesh_lib.batch_divisor(run.mesh)
    T = min(64, run.config.model.max_position_embeddings)
    shape, position_T = (rows, T), np.arange(T)
    ids = np.random.default_rng(0).integers(run.config.tokenizer.vocab_size, size=shape)
    batch = {
        "input_ids": ids,
        "segment_ids": np.broadcast_to(position_T >= T // 3, shape),
        "position_ids": np.broadcast_to(position_T, shape),
        "sequence_ids": np.broadcast_to(position_T < T - T // 4, shape),
        "masked_lm_positions": np.broadcast_to(position_T[:8], (rows, 8)),
        "next_sentence_positions": np.zeros((rows, 1)),
    }
    placed = sharding.place_batch(
        {name: array.astype(np.int32) for name, array in batch.items()}, run.mesh
    )

    @jax.jit
    def forward(params: Any) -> tuple[jax.Array, jax.Array]:
        bert = nnx.merge(run.graphdef, params)
        return bert(placed, dropout_key=None, dtype=jnp.dtype(jnp.float32))

    return lambda params: jax.device_get(forward(params))


def main() -> None:
    workdir, output = cli.require("workdir", "output")
    cli.local_directory("workdir", workdir)
    cli.local_directory("output", output)
    export(
        workdir,
        output,
        _FORMAT.value,
        _DTYPE.value,
        _STEP.value,
        _CORPUS_DIR.value,
    )


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "directory of a training run")
    flags.DEFINE_string("output", None, "new directory to write")
    _FORMAT = flags.DEFINE_enum("format", "huggingface", list(FORMATS), "what to write")
    _DTYPE = flags.DEFINE_enum(
        "dtype", "float32", list(MAX_DIFFERENCE), "of the weights written"
    )
    _STEP = flags.DEFINE_integer(
        "step", None, "checkpoint to use; the newest if absent"
    )
    _CORPUS_DIR = flags.DEFINE_string(
        "corpus_dir", None, "where the run's corpus is, if it was moved"
    )
    cli.run(main, __doc__)
