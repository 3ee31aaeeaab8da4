"""Linear and LayerNorm modules."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.distributed import sharding
from bert_jax.model.ops import times_kernel


class Linear(nnx.Module):
    """A kernel [input, output] and a bias [output]."""

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
        # Activations, and with them biases, are never split over the hidden dim.
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
            # One matrix of rows: as a product of 3-d arrays the weight gradient needs
            # a transposed copy of its inputs, which costs XLA a third of its speed. The
            # TPU's compiler lays rows out across and moves them for the attention.
            input_dim = "replicated" if self.input_dim == "embed" else self.input_dim
            x = jnp.reshape(
                x, (-1, shape[-1]), out_sharding=sharding.spec("batch", input_dim)
            )
        y = times_kernel(x, kernel, self._layout(x.ndim))
        # In float32, and with it the bias gradient: a sum over every row of the batch.
        bias = jnp.expand_dims(self.bias[...], range(x.ndim - 1))
        y = (y.astype(jnp.float32) + bias).astype(x.dtype)
        shape = (*shape[:-1], y.shape[-1])
        return jnp.reshape(y, shape, out_sharding=self._layout(len(shape)))

    def _layout(self, ndim: int) -> jax.P:
        """Returns the spec of the result with this many dims."""
        return sharding.spec("batch", *["replicated"] * (ndim - 2), self.output_dim)


class LayerNorm(nnx.Module):
    """Layer normalisation over the hidden dim with float32 statistics."""

    def __init__(self, size: int, eps: float):
        self.eps = eps
        replicated = sharding.spec("replicated")
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32, out_sharding=replicated))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32, out_sharding=replicated))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        mean = jnp.mean(y, axis=-1, keepdims=True)
        # Two passes: the one-pass variance cancels when the mean is large.
        centred = y - mean
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        lead = range(x.ndim - 1)
        scale = jnp.expand_dims(self.scale[...], lead)
        bias = jnp.expand_dims(self.bias[...], lead)
        y = centred * jax.lax.rsqrt(variance + self.eps) * scale + bias
        return y.astype(x.dtype)
