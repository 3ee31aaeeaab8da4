"""Weight-only int8 quantization for inference.

Weights take a quarter of their float32 memory once the float32 copy is released, which
happens after one comparison of both.

qwix quantizes the weights: a matrix has one scale for each output, an embedding table
one for each row. Biases, LayerNorm scales and activations stay float32; weights are
dequantized where they are multiplied. qwix is imported at its first use, because the
import would make a command's start-up a third longer.
"""

import time
from collections.abc import Callable
from typing import Any

import jax

from bert_jax.model.parameters import path_name

# The axis that has one scale for each index: of an embedding table [row, D] and of a
# kernel [input, output].
_ROWS, _OUTPUTS = 0, 1
NUM_COMPARED = 128  # inputs that are computed with both int8 and float32 weights


def quantize(params: Any) -> Any:
    """Returns the parameters with int8 weights; `dequantize` is the inverse."""
    import qwix

    def quantize_array(path: tuple[Any, ...], array: jax.Array) -> Any:
        if array.ndim != 2:
            return array
        axis = _OUTPUTS if path_name(path).endswith("kernel") else _ROWS
        return qwix.quantize(array, "int8", channelwise_axes=[axis])

    return jax.jit(lambda p: jax.tree_util.tree_map_with_path(quantize_array, p))(
        params
    )


def dequantize(params: Any) -> Any:
    """Returns the parameters with int8 weights converted back to float32."""
    import qwix

    def is_quantized(leaf: Any) -> bool:
        return isinstance(leaf, qwix.QArray)

    return jax.tree.map(
        lambda leaf: qwix.dequantize(leaf) if is_quantized(leaf) else leaf,
        params,
        is_leaf=is_quantized,
    )


class QuantizationCheck:
    """A function with int8 weights whose first call is compared with float32 weights.

    Attributes:
      summary: the difference in words; "" before the first call.
      secs: the seconds that the comparison took.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        exact: Callable[[Any], Any],
        difference: Callable[[Any, Any], str],
    ):
        """Stores both functions.

        Args:
          function: maps a list of texts to a list of results, with int8 weights.
          exact: the same with float32 weights; released after its only call.
          difference: describes the difference between the results of `exact` (first)
            and those of `function`.
        """
        self._function, self._difference = function, difference
        self._exact: Callable[[Any], Any] | None = exact
        self.summary, self.secs = "", 0.0

    def __call__(self, texts: list[Any]) -> list[Any]:
        found = self._function(texts)
        if self._exact:
            begin = time.monotonic()
            exact = self._exact(texts[:NUM_COMPARED])
            self.summary = self._difference(exact, found[: len(exact)])
            self._exact = None
            self.secs = time.monotonic() - begin
        return found


def num_bytes(params: Any) -> int:
    """Returns the bytes of the parameters, each array counted once."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def memory_summary(exact: Any, quantized: Any) -> str:
    """Describes the memory that quantization saves, given both sets of parameters."""
    before, after = num_bytes(exact), num_bytes(quantized)
    return f"int8 weights: {after / 1e6:,.1f} MB instead of {before / 1e6:,.1f} MB"
