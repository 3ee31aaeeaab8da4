"""The device mesh and the one table from logical dims to mesh axes.

"axis" means an axis of the mesh (data, fsdp, tensor), "dim" a dimension of an array.
Layouts are given by logical dim name, so that no other file names a mesh axis:
parameters at their initialiser, activations on the few operations JAX asks about.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

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


def platform() -> str:
    """Returns what the devices of the mesh that is set are: cpu, gpu or tpu.

    Not `jax.default_backend()`: a step can be made for devices of another machine. It
    can be asked while a function is traced, too.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


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
