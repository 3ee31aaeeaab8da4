"""Builds the device mesh and checks that batches and parameters divide over it."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType

from bert_jax.config import ExperimentConfig, MeshConfig, ModelConfig, multiples_around
from bert_jax.errors import ConfigError

AXES = ("data", "fsdp", "tensor")
DATA_ONLY = MeshConfig(data=-1, fsdp=1, tensor=1, shard_optimizer=False)

Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def make_mesh(
    config: MeshConfig, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """Builds the mesh, with explicit axis types, over `devices` or all devices.

    Devices of several slices (TPU pods joined by the data centre's network) are laid
    out so that only the data axis crosses slices.
    """
    devices = jax.devices() if devices is None else devices
    shape = resolve_mesh_shape(config, len(devices))
    num_slices = len({getattr(device, "slice_index", 0) for device in devices})
    check_slices(shape[0], num_slices)
    # If a size is not a product of the torus' sides, an axis may use part of a side.
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
            f"config.mesh ({sizes}) cannot be laid out on these devices: {error}"
        ) from None
    types = (AxisType.Explicit,) * len(AXES)
    mesh = jax.sharding.Mesh(array, AXES, axis_types=types)
    host_part(mesh, devices[0].process_index)  # raises if they have unequal parts
    return mesh


def resolve_mesh_shape(config: MeshConfig, num_devices: int) -> tuple[int, ...]:
    """Returns the sizes of AXES; -1 is the number of remaining devices."""
    sizes = [config.data, config.fsdp, config.tensor]
    text = ", ".join(f"{axis}={n}" for axis, n in zip(AXES, sizes, strict=True))
    fixed = math.prod(n for n in sizes if n != -1)
    if -1 in sizes and num_devices % fixed == 0:
        sizes[sizes.index(-1)] = num_devices // fixed
    if -1 in sizes or math.prod(sizes) != num_devices:
        raise ConfigError(
            f"config.mesh ({text}) does not fit {num_devices} device(s): the sizes must"
            f" multiply to {num_devices}; try config.mesh.data=-1 with fsdp=1, tensor=1"
        )
    return tuple(sizes)


def check_slices(data: int, num_slices: int) -> None:
    """Raises ConfigError if the size of the data axis is not a multiple of slices."""
    if data % num_slices:
        raise ConfigError(
            f"config.mesh.data={data} must be a multiple of the {num_slices} slices"
            " of the devices: the network between slices is slow, so fsdp and tensor"
            " must fit within one slice"
        )


def batch_divisor(mesh: Mesh) -> int:
    """Returns the number of parts that a microbatch's rows are split into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def host_part(mesh: jax.sharding.Mesh, process_index: int) -> tuple[int, int]:
    """Returns (i, n): the process holds the i-th of n equal parts of a batch's rows.

    Processes that differ only along the tensor axis hold the same rows. Parts are
    numbered in the order of the processes on the mesh.
    """
    rows_on = mesh.devices.reshape(batch_divisor(mesh), -1)
    held: dict[int, set[int]] = {}  # process -> indices of the rows of devices it holds
    for row, devices in enumerate(rows_on):
        for device in devices:
            held.setdefault(device.process_index, set()).add(row)
    parts = sorted({tuple(sorted(rows)) for rows in held.values()})
    if sum(map(len, parts)) != len(rows_on) or len({len(part) for part in parts}) > 1:
        raise ConfigError(
            f"config.mesh ({dict(mesh.shape)}) gives {len(held)} processes unequal"
            " parts of a batch; choose tensor so that it divides the number of devices"
            " of a process, or is a multiple of it"
        )
    return parts.index(tuple(sorted(held[process_index]))), len(parts)


def check(config: ExperimentConfig, mesh: Mesh) -> None:
    """Raises ConfigError if batches or parameters do not divide over the mesh."""
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
    key: str, size: int, accumulation_steps: int, mesh: Mesh, num_streams: int = 1
) -> None:
    """Raises ConfigError if a batch does not divide over the mesh.

    The sizes that the error suggests are multiples of num_streams as well.
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
    """Raises ConfigError if parameters do not divide over the mesh."""
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
    """Raises ConfigError if `shard_optimizer` is on and moments do not divide."""
    split = batch_divisor(mesh)  # data * fsdp
    if config.shard_optimizer and model.hidden_size % split:
        raise ConfigError(
            f"config.mesh.shard_optimizer=True needs mesh.data * mesh.fsdp={split} to"
            f" divide config.model.hidden_size={model.hidden_size}"
        )
