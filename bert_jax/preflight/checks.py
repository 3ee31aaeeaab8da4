"""Checks the corpus and the number of devices, without compilation."""

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import build
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.training import optimizer


def check(config: ExperimentConfig) -> list[str]:
    """Checks the corpus; returns a line for each check that passed or was skipped."""
    directory = config.data.corpus_dir
    if corpus_lib.exists(directory):
        corpus = build.find_corpus(config)
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
            "not included: the memory of config.guard.replay_every_steps, which is two"
            " more states and the temporaries of another step"
        )
    return found


def check_devices(config: ExperimentConfig, num_devices: int, num_slices: int) -> str:
    """Checks that a config can be divided over the devices of all slices; opens none.

    Returns one line that describes the mesh and the batches.
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
    notes = list(optimizer.schedule_notes(config))
    for key in ("init_from", "branch_from"):
        if getattr(config, key):
            path = getattr(config, key)
            notes.append(f"the weights in config.{key}={path!r} were not checked")
    return notes
