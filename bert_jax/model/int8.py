"""Weight-only int8 quantization for inference.

Weights take a quarter of their float32 memory.

qwix quantizes the weights: a matrix has one scale for each output, an embedding table
one for each row. Biases, LayerNorm scales and activations stay float32; weights are
dequantized where they are multiplied. qwix is imported at its first use, because the
import would make a command's start-up a third longer.
"""

from typing import Any

import jax

from bert_jax.model.parameters import path_name

# The axis with one scale per index, in an embedding table [row, D] and in a kernel
# [input, output].
_ROWS, _OUTPUTS = 0, 1


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
