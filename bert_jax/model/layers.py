"""The Linear and LayerNorm modules."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.distributed import sharding
from bert_jax.model.ops import plus_bias, times_kernel


class Linear(nnx.Module):
    """A linear layer: a kernel [input, output] and a bias [output]."""

    def __init__(
        self,
        shape: tuple[int, int],
        dims: tuple[str, str],
        *,
        stddev: float,
        rngs: nnx.Rngs,
    ):
        init = jax.nn.initializers.truncated_normal(stddev)
        out = sharding.spec(*dims)
        self.kernel = nnx.Param(
            init(rngs.params(), shape, jnp.float32, out_sharding=out)
        )
        self.input_dim, output_dim = dims
        # Activations are never sharded over the hidden dim, so neither are biases.
        self.output_dim = "replicated" if output_dim == "embed" else output_dim
        self.bias = nnx.Param(
            jnp.zeros(
                shape[1:], jnp.float32, out_sharding=sharding.spec(self.output_dim)
            )
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns x @ kernel + bias, [B, ..., input] -> [B, ..., output]."""
        shape, kernel = x.shape, self.kernel[...]
        if sharding.platform() == "cpu":
            # Flatten to a matrix: as a product of 3-d arrays, the weight gradient needs
            # a transposed copy of its inputs, which costs XLA a third of its speed on a
            # CPU. On a TPU, the compiler would lay a matrix out transposed and copy it
            # for the attention.
            input_dim = "replicated" if self.input_dim == "embed" else self.input_dim
            x = jnp.reshape(
                x, (-1, shape[-1]), out_sharding=sharding.spec("batch", input_dim)
            )
        y = times_kernel(x, kernel, self._layout(x.ndim))
        # A TPU adds up the gradient of the feed-forward bias in the product that
        # computes its terms; another product would read them again.
        product_dtype = None if self.output_dim == "mlp" else x.dtype
        y = plus_bias(y, self.bias[...], product_dtype)
        shape = (*shape[:-1], y.shape[-1])
        return jnp.reshape(y, shape, out_sharding=self._layout(len(shape)))

    def _layout(self, ndim: int) -> jax.P:
        """Returns the PartitionSpec of a result with `ndim` dims."""
        return sharding.spec("batch", *["replicated"] * (ndim - 2), self.output_dim)


class LayerNorm(nnx.Module):
    """Layer normalization over the hidden dim with float32 statistics."""

    def __init__(self, size: int, eps: float):
        self.eps = eps
        replicated = sharding.spec("replicated")
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32, out_sharding=replicated))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32, out_sharding=replicated))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        mean = jnp.mean(y, axis=-1, keepdims=True)
        centred = y - mean
        if x.dtype == jnp.bfloat16:
            # One pass over x gives both moments. The formula cancels when the mean is
            # large, but by less than the rounding of x to 8 bits changes the variance.
            square = jnp.mean(jnp.square(y), axis=-1, keepdims=True)
            variance = jnp.maximum(square - jnp.square(mean), 0.0)
        else:
            variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        lead = range(x.ndim - 1)
        scale = jnp.expand_dims(self.scale[...], lead)
        bias = jnp.expand_dims(self.bias[...], lead)
        y = centred * jax.lax.rsqrt(variance + self.eps) * scale + bias
        return y.astype(x.dtype)
