"""What `preflight` holds against the config besides the compiled step."""

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
    """Returns what was found in order, a line each, and what is not there yet.

    Raises:
      ConfigError: when the corpus was made for another config, or nothing can be
        written to the workdir.
    """
    found = []
    if corpus_lib.exists(config.data.corpus_dir):
        corpus = corpus_lib.read(config)
        found.append(
            f"corpus {config.data.corpus_dir} was made with this tokenizer and these"
            " settings"
        )
        for i, phase in enumerate(config.phases):
            rows = sum(corpus.rows_per_epoch("train", config.data, phase))
            epochs = phase.num_steps * phase.global_batch_size / rows
            found.append(
                f"phase {i + 1} takes {epochs:,.1f} epochs of {rows:,} rows of"
                f" {phase.sequence_length}"
            )
    else:
        found.append(f"there is no corpus in {config.data.corpus_dir} yet: not checked")
    found += [*optimizer.schedule_notes(config), *_unchecked(config)]
    if config.guard.replay_every_steps:
        found.append(
            "config.guard.replay_every_steps needs room for two more states (parameters"
            " and moments), and another step's temporaries; the figures leave them out"
        )
    if workdir is not None:
        check_writable(workdir)
        found.append(f"workdir {workdir} can be written")
    return found


def check_devices(
    config: ExperimentConfig, num_devices: int, num_slices: int = 1
) -> str:
    """Returns a line on how batches are spread over so many devices; none is opened.

    Args:
      config: of the run.
      num_devices: of all slices.
      num_slices: that the devices are in, equal parts.

    Raises:
      ConfigError: as `train` would there. It knows more: the hosts that devices are on.
    """
    shape = mesh_lib.resolve_mesh_shape(config.mesh, num_devices)
    mesh_lib.check_slices(shape[0], num_slices)
    mesh = jax.sharding.AbstractMesh(shape, mesh_lib.AXES)
    mesh_lib.check(config, mesh)
    axes = " x ".join(f"{axis} {n}" for axis, n in mesh.shape.items())
    parts = mesh_lib.batch_divisor(mesh) * config.accumulation_steps
    batches = "; ".join(
        f"phase {i + 1}: {phase.global_batch_size} sequences,"
        f" {phase.global_batch_size // parts} a device at a time"
        for i, phase in enumerate(config.phases)
    )
    notes = [*optimizer.schedule_notes(config), *_unchecked(config)]
    return "; ".join(
        [f"the config goes onto {num_devices} device(s), mesh {axes}", batches, *notes]
    )


def _unchecked(config: ExperimentConfig) -> list[str]:
    """Says what only the machines that train may have."""
    if not config.init_from:
        return []
    return [f"config.init_from={config.init_from!r} was not looked for"]


def check_writable(workdir: str) -> None:
    """Raises ConfigError unless a file can be made in the workdir or what will hold it.

    Nothing is left behind.
    """
    cli.local_directory("workdir", workdir)
    path = Path(workdir).absolute()
    there = next(each for each in (path, *path.parents) if each.is_dir())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise ConfigError(
            f"--workdir={workdir}: {there} cannot be written ({error.strerror}); give"
            " another directory"
        ) from None
