"""The device mesh and the one table from logical dims to mesh axes.

"axis" means an axis of the mesh (data, fsdp, tensor), "dim" a dimension of an array.
Layouts are given by logical dim name, so that no other file names a mesh axis:
parameters at their initialiser, activations on the few operations JAX asks about.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, NamedSharding

from bert_jax.config import MeshConfig
from bert_jax.errors import ConfigError

AXES = ("data", "fsdp", "tensor")

RULES: dict[str, str | tuple[str, ...] | None] = {
    # Activations: rows of the batch are split over everything that is not tensor.
    "batch": ("data", "fsdp"),
    "seq": None,
    # Parameters: the hidden dim is what fsdp splits; heads and the feed-forward dim
    # are what tensor splits.
    "embed": "fsdp",
    "heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    # 30,522 = 2 * 3 * 5,087 divides by no useful axis size.
    "vocab": None,
    "positions": None,
    "classes": None,
    # The accumulation loop's index and the hidden dim of vectors and activations.
    "replicated": None,
}


def spec(*dims: str) -> jax.P:
    """Returns the partition spec of an array with these logical dims.

    Raises:
      ValueError: when a dim is not in RULES or two dims land on one mesh axis.
    """
    used: list[str] = []
    entries = []
    for dim in dims:
        if dim not in RULES:
            raise ValueError(f"no rule for {dim=}; known dims: {', '.join(RULES)}")
        axes = RULES[dim]
        entries.append(axes)
        used += [axes] if isinstance(axes, str) else list(axes or ())
    if len(used) != len(set(used)):
        raise ValueError(f"{dims=} put two dims on one mesh axis: {used}")
    return jax.P(*entries)


def over_data(tree: Any) -> Any:
    """Returns the arrays split over the data axis as well, for the optimizer (ZeRO-1).

    Matrices alone, whose dim that fsdp may split is split further; vectors are small.

    Raises:
      ValueError: when that dim does not divide.
    """
    return jax.tree.map(
        lambda x: jax.reshard(x, over_data_spec(jax.typeof(x).sharding.spec)), tree
    )


def over_data_spec(param_spec: jax.P) -> jax.P:
    """Returns the spec of a parameter's moments and update, see `over_data`."""
    if len(param_spec) < 2:
        return param_spec
    embed = RULES["embed"]
    entries = [(embed, "data") if axis == embed else axis for axis in param_spec]
    return jax.P(*entries)


def laid_out_as(tree: Any, like: Any) -> Any:
    """Returns the arrays in the layout of those in the tree `like`."""
    return jax.tree.map(
        lambda x, y: jax.reshard(x, jax.typeof(y).sharding.spec), tree, like
    )


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


def platform() -> str:
    """Returns what the devices of the mesh that is set are: cpu, gpu or tpu.

    Not `jax.default_backend()`: a step can be made for devices of another machine. It
    can be asked while a function is traced, too.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


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


def place_batch(
    batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh
) -> dict[str, jax.Array]:
    """Makes global arrays [B, ...] of this process's rows [B / n, ...], `host_part`."""
    sharding = NamedSharding(mesh, spec("batch"))
    return {
        name: jax.make_array_from_process_local_data(sharding, rows)
        for name, rows in batch.items()
    }


def abstract_batch(
    shapes: dict[str, tuple[tuple[int, ...], Any]], mesh: jax.sharding.Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns what `place_batch` makes of arrays with these shapes and dtypes."""
    sharding = NamedSharding(mesh, spec("batch"))
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        for name, (shape, dtype) in shapes.items()
    }
