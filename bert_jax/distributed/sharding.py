"""Maps logical dims of arrays to axes of the mesh, and places arrays accordingly.

"axis" means an axis of the mesh (data, fsdp, tensor), "dim" a dimension of an array.
Layouts are given by logical dim name, so that no other file names a mesh axis.
Parameters get a layout at initialization, activations at the few operations whose
output sharding JAX cannot infer.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

RULES: dict[str, str | tuple[str, ...] | None] = {
    # Activations: rows of the batch are split over every axis except tensor.
    "batch": ("data", "fsdp"),
    "seq": None,
    # Parameters: fsdp splits the hidden dim; tensor splits heads and the feed-forward
    # dim.
    "embed": "fsdp",
    "heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    # 30,522 = 2 * 3 * 5,087 is not divisible by any useful axis size.
    "vocab": None,
    "positions": None,
    "classes": None,
    # The accumulation loop's index and the hidden dim of vectors and activations.
    "replicated": None,
}


def spec(*dims: str) -> jax.P:
    """Returns the PartitionSpec of an array with these logical dims."""
    return jax.P(*(RULES[dim] for dim in dims))


def shard_over_data(tree: Any) -> Any:
    """Shards arrays over the data axis as well, for the optimizer (ZeRO-1).

    The dim of a matrix that fsdp splits is split further. Vectors are small and stay as
    they are.
    """
    embed = RULES["embed"]

    def shard(x: jax.Array) -> jax.Array:
        axes = jax.typeof(x).sharding.spec
        if len(axes) >= 2:
            axes = [(embed, "data") if axis == embed else axis for axis in axes]
        return jax.reshard(x, jax.P(*axes))

    return jax.tree.map(shard, tree)


def on_mesh(tree: Any, mesh: jax.sharding.Mesh) -> Any:
    """Returns the abstract arrays of `jax.eval_shape`, placed on a mesh."""

    def place(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        # jax.eval_shape gives scalars no sharding.
        placed = NamedSharding(mesh, x.sharding.spec if x.sharding else jax.P())
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed)

    return jax.tree.map(place, tree)


def platform() -> str:
    """Returns the platform of the current mesh: cpu, gpu or tpu.

    It differs from `jax.default_backend()` when a step is compiled for devices of
    another machine. It can be called while a function is traced.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def device_kind() -> str:
    """Returns the kind of the current mesh's devices, such as "TPU v5 lite".

    As `platform`, it can be that of devices of another machine.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0].device_kind if device is None else device.device_kind


def place_batch(
    batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh
) -> dict[str, jax.Array]:
    """Makes global arrays [B, ...] from this process's rows [B / n, ...].

    `mesh.host_part` gives n and the part that this process holds.
    """
    sharding = NamedSharding(mesh, spec("batch"))
    return {
        name: jax.make_array_from_process_local_data(sharding, rows)
        for name, rows in batch.items()
    }


def abstract_batch(
    shapes: dict[str, tuple[tuple[int, ...], Any]], mesh: jax.sharding.Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the abstract arrays of a placed batch with these shapes and dtypes."""
    sharding = NamedSharding(mesh, spec("batch"))
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        for name, (shape, dtype) in shapes.items()
    }
