"""Whether batches and parameters divide over a mesh, asked before anything is made."""

import math

import jax

from bert_jax import sharding
from bert_jax.config import ExperimentConfig, MeshConfig, ModelConfig, multiples_around
from bert_jax.errors import ConfigError

Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def check(config: ExperimentConfig, mesh: Mesh) -> None:
    """Raises ConfigError when batches or parameters do not divide over the mesh."""
    for i, phase in enumerate(config.phases):
        check_batch(
            f"config.phases[{i}].global_batch_size",
            phase.global_batch_size,
            config.accumulation_steps,
            mesh,
            config.data.num_streams,
        )
    check_model(config.model, mesh)
    check_optimizer(config.model, config.mesh, mesh)


def check_batch(
    key: str,
    size: int,
    accumulation_steps: int,
    mesh: Mesh,
    num_streams: int = 1,
) -> None:
    """Raises ConfigError when a batch does not divide.

    Args:
      key: of the config.
      size: its value, rows of a step.
      accumulation_steps: microbatches of a step.
      mesh: of the run.
      num_streams: what divides the size already, and has to divide what is advised.
    """
    data, fsdp = mesh.shape["data"], mesh.shape["fsdp"]
    rows = sharding.batch_divisor(mesh) * accumulation_steps
    if size % rows:
        both = math.lcm(rows, num_streams)
        streams = f" (and of data.num_streams={num_streams})" if both > rows else ""
        raise ConfigError(
            f"{key}={size} must be a multiple of mesh.data * mesh.fsdp *"
            f" accumulation_steps = {data} * {fsdp} * {accumulation_steps} = {rows}"
            f"{streams}; try {multiples_around(size, both)}"
        )


def check_model(model: ModelConfig, mesh: Mesh, where: str = "config.model.") -> None:
    """Raises ConfigError when parameters do not divide; `where` names their sizes."""
    for key, axis in (
        ("hidden_size", "fsdp"),
        ("num_attention_heads", "tensor"),
        ("intermediate_size", "tensor"),
    ):
        size = getattr(model, key)
        if size % mesh.shape[axis]:
            raise ConfigError(
                f"config.mesh.{axis}={mesh.shape[axis]} must divide {where}{key}={size}"
            )


def check_optimizer(model: ModelConfig, config: MeshConfig, mesh: Mesh) -> None:
    """Raises ConfigError when what `shard_optimizer` splits does not divide."""
    split = sharding.batch_divisor(mesh)  # data * fsdp
    if config.shard_optimizer and model.hidden_size % split:
        raise ConfigError(
            f"config.mesh.shard_optimizer=True needs mesh.data * mesh.fsdp={split} to"
            f" divide config.model.hidden_size={model.hidden_size}"
        )
