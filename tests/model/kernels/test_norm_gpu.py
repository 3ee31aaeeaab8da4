"""The kernel of dropout, residual sum and LayerNorm, emulated on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.distributed import sharding
from bert_jax.model import layers
from bert_jax.model.dropout import Seed, dropout, row_indices
from bert_jax.model.kernels import norm_gpu
from tests.conftest import slow, use_mesh

EPS = 1e-12
NAMES = ("norm", "x", "y", "scale", "bias")


def arrays(mesh, width, rows=2, length=128):
    """Returns x, y and the gradient, bfloat16, and the scale and bias on the mesh."""
    random = np.random.default_rng(0)

    def place(shape, dtype, *dims):
        array = jnp.asarray(random.normal(size=shape), dtype)
        return jax.device_put(array, jax.NamedSharding(mesh, sharding.spec(*dims)))

    rows = [
        place((rows, length, width), "bfloat16", "batch", "seq", "replicated")
        for _ in range(3)
    ]
    return *rows, *(place((width,), "float32", "replicated") for _ in range(2))


def by_kernel(x, y, scale, bias, seed, rate):
    options = norm_gpu.Options(EPS, rate, interpret=True)
    return norm_gpu.add_and_norm(x, y, scale, bias, seed, options)


def by_operations(x, y, scale, bias, seed, rate):
    """Rounds the sum to bfloat16, as the kernel stores it."""
    norm = layers.LayerNorm(x.shape[-1], EPS)
    norm.scale[...], norm.bias[...] = scale, bias
    total = (x + dropout(y, rate, seed)).astype(jnp.bfloat16)
    return norm(total.astype(jnp.float32))


def with_gradients(function, x, y, gradient, scale, bias, rate):
    words = jnp.array([5, 6], jnp.uint32)
    seed = Seed(words, row_indices(len(x))) if rate else None

    @jax.jit
    def compute(gradient, *inputs):
        found, vjp = jax.vjp(lambda *inputs: function(*inputs, seed, rate), *inputs)
        return found, *vjp(gradient)

    found = compute(gradient, x, y, scale, bias)
    return [np.asarray(x, np.float32) for x in found]


# 768 and 192 are not powers of 2.
@pytest.mark.parametrize(
    ("width", "rate"), [(192, 0.1), slow(768, 0.1), slow(512, 0.0)]
)
def test_kernel_equals_operations(width, rate):
    inputs = arrays(use_mesh(1, 1, 1), width)
    found = with_gradients(by_kernel, *inputs, rate)
    exact = (x.astype(jnp.float32) for x in inputs)
    expected = with_gradients(by_operations, *exact, rate)
    for name, x, y in zip(NAMES, found, expected, strict=True):
        error = np.linalg.norm(x - y) / np.linalg.norm(y)
        assert error < (4e-3 if name in NAMES[:3] else 1e-5), name


def test_kernel_is_the_same_on_every_mesh():
    expected = with_gradients(by_kernel, *arrays(use_mesh(1, 1, 1), 64, rows=4), 0.1)
    found = with_gradients(by_kernel, *arrays(use_mesh(2, 2, 1), 64, rows=4), 0.1)
    for name, x, y in zip(NAMES, found, expected, strict=True):
        # Sums of the weights' gradients over devices have another order.
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-5, err_msg=name)
