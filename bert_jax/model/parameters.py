"""Converts parameter trees to arrays by name, and back."""

from typing import Any

import jax
import numpy as np
from flax import nnx


def path_name(path: tuple[Any, ...]) -> str:
    """Returns a tree path as a dotted name, e.g. bert.layers.0.output.kernel."""
    words = []
    for part in path:
        for attribute in ("key", "idx", "name"):
            if hasattr(part, attribute):
                words.append(str(getattr(part, attribute)))
                break
    # nnx.Param is a tree node with its array under "value", which is not in the name.
    return ".".join(words[:-1] if words[-1] == "value" else words)


def by_name(params: Any) -> dict[str, np.ndarray]:
    """Returns the parameters as NumPy arrays, by dotted name."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {path_name(path): np.asarray(jax.device_get(x)) for path, x in leaves}


def place(params: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns the parameters with those that `arrays` names replaced.

    An array takes the sharding of the parameter that it replaces.
    """

    def replace(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        array = arrays.get(path_name(path))
        if array is None:
            return leaf
        assert array.shape == leaf.shape, path_name(path)
        return jax.device_put(array, leaf.sharding)

    return jax.tree_util.tree_map_with_path(replace, params)


def structure(build: Any) -> tuple[nnx.GraphDef, Any]:
    """Returns a model's graphdef and its parameters as abstract arrays.

    `build` maps a PRNG key to a graphdef and a state; it allocates no memory.
    """
    graphdefs: list[nnx.GraphDef] = []

    def params() -> nnx.State:
        graphdef, state = build(jax.random.key(0))
        graphdefs.append(graphdef)
        return state

    abstract = jax.eval_shape(params)
    return graphdefs[0], abstract
