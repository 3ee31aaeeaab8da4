"""Linear layers, the GELU, and layer normalization."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.distributed import sharding
from bert_jax.model.dropout import Seed, dropout
from bert_jax.model.kernels import gpu
from bert_jax.model.ops import plus_bias, times_kernel


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gelu(x: jax.Array, approximate: bool) -> jax.Array:
    """Returns x times the normal distribution's CDF at x, or its tanh approximation.

    Only x is stored for the gradient; on a GPU, JAX's rule stores a second array of its
    size. The schedule of a TPU v5e is the same with either.
    """
    return _gelu(x, approximate)


def _gelu(x, approximate):
    if approximate and sharding.platform() != "cpu":
        # cuBLAS applies it to a product, unless a conversion comes between.
        return jax.nn.gelu(x)
    # In bfloat16, each operation would be rounded, which takes a CPU 3 times as long.
    y = x.astype(jnp.float32)
    if approximate:
        y = jax.nn.gelu(y)
    else:  # JAX's form, by erfc, takes 1.3 to 2.4 times as long
        y *= 0.5 * (1.0 + jax.lax.erf(y * 0.5**0.5))
    return y.astype(x.dtype)


def _gelu_forward(x, approximate):
    y = _gelu(x, approximate)
    if sharding.device_kind().startswith(("TPU v6", "TPU7")):
        # Otherwise XLA stores only x, and each product that reads y computes it again,
        # which takes longer than the product on these wide matrix units.
        y = jax.lax.optimization_barrier(y)
    return y, x


def _gelu_backward(approximate, x, gradient):
    # Otherwise XLA would compute both passes at once, and store their common terms.
    x = jax.lax.optimization_barrier(x)
    _, vjp = jax.vjp(lambda x: _gelu(x, approximate), x)
    return vjp(gradient)


gelu.defvjp(_gelu_forward, _gelu_backward)


class Linear(nnx.Module):
    """A linear layer: a kernel [input, output] and a bias [output]."""

    def __init__(
        self,
        shape: tuple[int, int],
        dims: tuple[str, str],
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
        out = sharding.spec(self.output_dim)
        self.bias = nnx.Param(jnp.zeros(shape[1:], jnp.float32, out_sharding=out))

    def activated(self, x_BTD: jax.Array, activation: str) -> jax.Array:
        """Returns the activation of the result, [B, T, output]."""
        bias = self.bias[...]
        (width,) = jax.typeof(bias).sharding.shard_shape(bias.shape)
        approximate = activation == "gelu_new"
        if approximate and gpu.has_kernels(x_BTD):
            from bert_jax.model.kernels import gelu_gpu

            if width % gelu_gpu.COLUMNS == 0:
                y_BTF = times_kernel(x_BTD, self.kernel[...], self._layout(3))
                return gelu_gpu.add_and_gelu(y_BTF, bias)
        return gelu(self(x_BTD), approximate)

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


def can_join(linears: tuple[Linear, ...]) -> bool:
    """Returns whether the outputs of the Linears are not sharded, see `joined`."""
    kernel = linears[0].kernel[...]
    return jax.typeof(kernel).sharding.shard_shape(kernel.shape)[1] == kernel.shape[1]


def joined(linears: tuple[Linear, ...], x_BTD: jax.Array) -> jax.Array:
    """Returns the results of several Linears, [B, T, output] each, as one array.

    One product reads the input once, and the gradients of the input are summed inside
    one product.
    """
    # A kernel is not sharded over its outputs, but may name a mesh axis of size 1.
    whole = jax.P(jax.typeof(linears[0].kernel[...]).sharding.spec[0], None)
    kernels = [jax.reshard(each.kernel[...], whole) for each in linears]
    biases = [jax.reshard(each.bias[...], jax.P(None)) for each in linears]
    out = sharding.spec("batch", "seq", "replicated")
    y = times_kernel(x_BTD, jnp.concatenate(kernels, axis=1), out)
    return plus_bias(y, jnp.concatenate(biases))


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


def add_and_norm(
    norm: LayerNorm, x_BTD: jax.Array, y_BTD: jax.Array, rate: float, seed: Seed | None
) -> jax.Array:
    """Returns the norm of x + dropout(y), [B, T, D]; see `dropout.dropout`."""
    if gpu.has_kernels(x_BTD):
        from bert_jax.model.kernels import norm_gpu

        if x_BTD.shape[-1] % norm_gpu.MIN_WIDTH == 0:
            options = norm_gpu.Options(norm.eps, 0.0 if seed is None else rate)
            weights = norm.scale[...], norm.bias[...]
            return norm_gpu.add_and_norm(x_BTD, y_BTD, *weights, seed, options)
    return norm(x_BTD + dropout(y_BTD, rate, seed))
