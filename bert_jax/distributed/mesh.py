"""Makes the mesh of a run, and checks that batches and parameters divide over it."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType

from bert_jax.config import ExperimentConfig, MeshConfig, ModelConfig, multiples_around
from bert_jax.errors import ConfigError

AXES = ("data", "fsdp", "tensor")

Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def make_mesh(
    config: MeshConfig, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """Builds the explicit mesh over `devices`, or over all of them.

    Devices of several slices (TPU pods joined by a data centre's network) are laid out
    so that the data axis alone goes from one to the next.

    Raises:
      ConfigError: when the mesh is not as large as the number of devices, does not go
        into the torus of a TPU, or has a data axis that is no multiple of the slices.
    """
    devices = jax.devices() if devices is None else devices
    shape = resolve_mesh_shape(config, len(devices))
    num_slices = len({getattr(device, "slice_index", 0) for device in devices})
    check_slices(shape[0], num_slices)
    # Where a size is no product of a torus' sides, a part of one is better than none.
    options = {"devices": devices, "allow_split_physical_axes": True}
    per_slice = (shape[0] // num_slices, *shape[1:])
    try:
        if num_slices == 1:
            array = mesh_utils.create_device_mesh(shape, **options)
        else:
            array = mesh_utils.create_hybrid_device_mesh(
                per_slice, (num_slices, 1, 1), **options
            )
    except (NotImplementedError, ValueError) as error:
        sizes = ", ".join(f"{axis}={n}" for axis, n in zip(AXES, shape, strict=True))
        raise ConfigError(
            f"config.mesh ({sizes}) cannot be laid on these devices: {error}"
        ) from None
    types = (AxisType.Explicit,) * len(AXES)
    return jax.sharding.Mesh(array, AXES, axis_types=types)


def resolve_mesh_shape(config: MeshConfig, num_devices: int) -> tuple[int, ...]:
    """Returns the sizes of AXES with a -1 replaced by what remains.

    Raises:
      ConfigError: when the sizes do not multiply to the number of devices.
    """
    sizes = [config.data, config.fsdp, config.tensor]
    text = ", ".join(f"{axis}={n}" for axis, n in zip(AXES, sizes, strict=True))
    fixed = int(np.prod([n for n in sizes if n != -1]))
    if -1 in sizes and num_devices % fixed == 0:
        sizes[sizes.index(-1)] = num_devices // fixed
    if -1 in sizes or int(np.prod(sizes)) != num_devices:
        raise ConfigError(
            f"config.mesh ({text}) does not fit {num_devices} device(s): the sizes must"
            f" multiply to {num_devices}; try config.mesh.data=-1 with fsdp=1, tensor=1"
        )
    return tuple(sizes)


def check_slices(data: int, num_slices: int) -> None:
    """Raises ConfigError unless slices can be laid along a data axis of that size."""
    if data % num_slices:
        raise ConfigError(
            f"config.mesh.data={data} must be a multiple of the {num_slices} slices"
            " that the devices are in: between slices the network is slow, and fsdp and"
            " tensor stay within one"
        )


def batch_divisor(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> int:
    """Returns what a microbatch's number of rows must be a multiple of."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def host_part(mesh: jax.sharding.Mesh, process_index: int) -> tuple[int, int]:
    """Returns (i, n): a process holds the i-th of n equal parts of a batch's rows.

    Processes that differ in tensor devices alone hold the same rows. Parts are counted
    in the order in which processes come on the mesh.

    Raises:
      ConfigError: when the processes hold parts of different sizes.
    """
    rows_on = mesh.devices.reshape(batch_divisor(mesh), -1)
    held: dict[int, set[int]] = {}  # by process, indices of the smallest parts
    for row, devices in enumerate(rows_on):
        for device in devices:
            held.setdefault(device.process_index, set()).add(row)
    parts = sorted({tuple(sorted(rows)) for rows in held.values()})
    if sum(map(len, parts)) != len(rows_on) or len({len(part) for part in parts}) > 1:
        raise ConfigError(
            f"config.mesh ({dict(mesh.shape)}) gives {len(held)} processes unequal"
            " parts of a batch; choose tensor so that it divides the devices of a"
            " process, or the other way round"
        )
    return parts.index(tuple(sorted(held[process_index]))), len(parts)


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
    rows = batch_divisor(mesh) * accumulation_steps
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
    split = batch_divisor(mesh)  # data * fsdp
    if config.shard_optimizer and model.hidden_size % split:
        raise ConfigError(
            f"config.mesh.shard_optimizer=True needs mesh.data * mesh.fsdp={split} to"
            f" divide config.model.hidden_size={model.hidden_size}"
        )


def check_mesh(config: ExperimentConfig, mesh: jax.sharding.Mesh) -> None:
    """Raises ConfigError when batches or parameters do not divide over the mesh."""
    check(config, mesh)
    host_part(mesh, jax.process_index())
