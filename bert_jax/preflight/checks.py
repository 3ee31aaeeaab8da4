"""Checks of corpus, workdir and device count that need no compilation."""

import tempfile
from pathlib import Path

import jax

from bert_jax import cli
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.training import optimizer


def check(config: ExperimentConfig, workdir: str | None) -> list[str]:
    """Checks the corpus and the workdir.

    Returns:
      One line for each check that passed or was skipped.

    Raises:
      ConfigError: if the corpus was made with different settings, or the workdir is not
        writable.
    """
    directory = config.data.corpus_dir
    if corpus_lib.exists(directory):
        corpus = corpus_lib.read(config)
        found = [f"corpus {directory} matches the config's tokenizer and settings"]
        for i, phase in enumerate(config.phases):
            rows = sum(corpus.rows_per_epoch("train", config.data, phase))
            epochs = phase.num_steps * phase.global_batch_size / rows
            found.append(
                f"phase {i + 1} takes {epochs:,.1f} epochs of {rows:,} rows of"
                f" {phase.sequence_length} tokens"
            )
    else:
        found = [f"no corpus in {directory} yet: not checked"]
    found += _notes(config)
    if config.guard.replay_every_steps:
        found.append(
            "config.guard.replay_every_steps needs memory for two more states"
            " (parameters and moments) and the temporaries of another step, which are"
            " not included below"
        )
    if workdir is not None:
        check_writable(workdir)
        found.append(f"workdir {workdir} is writable")
    return found


def check_devices(
    config: ExperimentConfig, num_devices: int, num_slices: int = 1
) -> str:
    """Checks that a config can be divided over a number of devices; opens none.

    Args:
      config: config of the run.
      num_devices: number of devices in all slices.
      num_slices: number of equal slices that contain the devices.

    Returns:
      One line that describes the mesh and the batches.

    Raises:
      ConfigError: if `train` would raise it. `train` may find more errors, because it
        also knows which host each device is on.
    """
    shape = mesh_lib.resolve_mesh_shape(config.mesh, num_devices)
    mesh_lib.check_slices(shape[0], num_slices)
    mesh = jax.sharding.AbstractMesh(shape, mesh_lib.AXES)
    mesh_lib.check(config, mesh)
    axes = " x ".join(f"{axis} {n}" for axis, n in mesh.shape.items())
    parts = mesh_lib.batch_divisor(mesh) * config.accumulation_steps
    batches = (
        f"phase {i + 1}: {phase.global_batch_size} sequences,"
        f" {phase.global_batch_size // parts} per device and microbatch"
        for i, phase in enumerate(config.phases)
    )
    fits = f"the config fits {num_devices} device(s), mesh {axes}"
    return "; ".join([fits, *batches, *_notes(config)])


def _notes(config: ExperimentConfig) -> list[str]:
    """Describes an unusual schedule, and inputs that may exist only for `train`."""
    notes = list(optimizer.schedule_notes(config))
    if config.init_from:
        notes.append(f"config.init_from={config.init_from!r} was not checked")
    return notes


def check_writable(workdir: str) -> None:
    """Raises ConfigError unless the workdir, or its nearest parent, is writable."""
    cli.local_directory("workdir", workdir)
    path = Path(workdir).absolute()
    existing = next(each for each in (path, *path.parents) if each.is_dir())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise ConfigError(
            f"--workdir={workdir}: {existing} is not writable ({error.strerror}); give"
            " another directory"
        ) from None
