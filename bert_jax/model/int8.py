"""Weights of 8 bits for what only reads them: a quarter of float32's memory, once the
difference is told and the float32 ones are let go.

qwix quantises: each matrix has a scale for every output, each table of embeddings one
for every row. Biases and what layer norms multiply by stay float32. Activations do as
well: in a program the weights become floats where they are multiplied. qwix is imported
where it is used: a command's start would take a third longer.
"""

import time
from collections.abc import Callable
from typing import Any

import jax

from bert_jax.model.parameters import path_name

# Of an embedding [row, D] and of a kernel [input, output], the axis with a scale each.
_ROWS, _OUTPUTS = 0, 1
NUM_COMPARED = 128  # lines that are computed both ways, to tell of the difference


def quantized(params: Any) -> Any:
    """Returns parameters with int8 weights; `dequantized` gives them back for use."""
    import qwix

    def quantize(path: tuple[Any, ...], array: jax.Array) -> Any:
        if array.ndim != 2:
            return array
        axis = _OUTPUTS if path_name(path).endswith("kernel") else _ROWS
        return qwix.quantize(array, "int8", channelwise_axes=[axis])

    return jax.jit(lambda p: jax.tree_util.tree_map_with_path(quantize, p))(params)


def dequantized(params: Any) -> Any:
    """Returns float32 arrays where there are int8 ones with their scales."""
    import qwix

    def is_quantized(leaf: Any) -> bool:
        return isinstance(leaf, qwix.QArray)

    return jax.tree.map(
        lambda leaf: qwix.dequantize(leaf) if is_quantized(leaf) else leaf,
        params,
        is_leaf=is_quantized,
    )


class Compared:
    """Calls a function of int8 weights, and once that of float32 ones as well.

    Attributes:
      said: what int8 changed, in words; "" before the first call.
      secs: that the comparison took.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        exact: Callable[[Any], Any],
        difference: Callable[[Any, Any], str],
    ):
        """Sets up.

        Args:
          function: of a list of texts, with int8 weights; returns a list.
          exact: the same with float32 weights; let go after its only call.
          difference: of the lists of both, in words; the exact one first.
        """
        self._function, self._difference = function, difference
        self._exact: Callable[[Any], Any] | None = exact
        self.said, self.secs = "", 0.0

    def __call__(self, texts: list[Any]) -> list[Any]:
        found = self._function(texts)
        if self._exact:
            begin = time.monotonic()
            exact = self._exact(texts[:NUM_COMPARED])
            self.said = self._difference(exact, found[: len(exact)])
            self._exact = None
            self.secs = time.monotonic() - begin
        return found


def num_bytes(params: Any) -> int:
    """Returns what the arrays take on their devices, once."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def sizes(exact: Any, found: Any) -> str:
    """Returns words on what parameters take, given both."""
    before, after = num_bytes(exact), num_bytes(found)
    return f"int8 weights: {after / 1e6:,.1f} MB instead of {before / 1e6:,.1f} MB"
