"""Converts parameter trees to arrays by name, and back."""

from typing import Any

import jax
import numpy as np
from flax import nnx


def path_name(path: tuple[Any, ...]) -> str:
    """Returns a tree path as a dotted name, e.g. bert.layers.0.output.kernel."""
    # nnx.Param is a tree node with its array under "value", which is not in the name.
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    return name.removesuffix(".value")


def leaves(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by dotted name, in their order in the tree."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {path_name(path): leaf for path, leaf in paths}


def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every array of a tree, by name."""
    return {name: leaf.shape for name, leaf in leaves(tree).items()}


def by_name(params: Any) -> dict[str, np.ndarray]:
    """Returns the parameters as NumPy arrays, by dotted name."""
    return {name: np.asarray(jax.device_get(x)) for name, x in leaves(params).items()}


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
    return jax.eval_shape(lambda: build(jax.random.key(0)))
