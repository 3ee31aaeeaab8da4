"""The kernel of the gradient of a bias and the GELU, emulated on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.distributed import sharding
from bert_jax.model import layers
from bert_jax.model.kernels import gelu_gpu
from tests.conftest import use_mesh


@pytest.mark.parametrize("kind", ["cpu", "TPU v6 lite", "TPU7x"])
def test_slope_is_the_derivative_of_the_gelu(monkeypatch, kind):
    monkeypatch.setattr(sharding, "device_kind", lambda: kind)
    x = jnp.linspace(-30.0, 30.0, 4001)
    forward = jax.make_jaxpr(lambda x: jax.vjp(lambda x: layers.gelu(x, True), x)[0])
    assert ("optimization_barrier" in str(forward(x))) == kind.startswith("TPU")
    slope = jax.grad(lambda x: layers.gelu(x, approximate=True))
    found, expected = jax.jit(gelu_gpu._slope)(x), jax.jit(jax.vmap(slope))(x)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def with_gradients(function, *inputs):
    """Returns the result and the gradients of the bias and of x, as float32."""

    @jax.jit
    def compute(x, bias, gradient):
        found, vjp = jax.vjp(function, x, bias)
        return found, *vjp(gradient.astype(found.dtype))

    return [np.asarray(x, np.float32) for x in compute(*inputs)]


def test_gradients_equal_those_of_jax_on_every_mesh():
    random = np.random.default_rng(0)
    x, gradient = random.normal(size=(2, 4, 64, 512))
    bias = random.normal(size=512)

    def by_kernel(x, bias):
        return gelu_gpu.add_and_gelu(x, bias, interpret=True)

    def by_jax(x, bias):
        total = (x + bias[None, None]).astype(jnp.bfloat16).astype(jnp.float32)
        return layers.gelu(total, approximate=True)

    rounded = jnp.asarray(bias, jnp.bfloat16).astype(jnp.float32)
    for mesh_shape in ((1, 1, 1), (2, 1, 2)):
        mesh = use_mesh(*mesh_shape)

        def place(array, dtype, *dims, mesh=mesh):
            layout = jax.NamedSharding(mesh, sharding.spec(*dims))
            return jax.device_put(jnp.asarray(array, dtype), layout)

        rows = "batch", "seq", "mlp"
        inputs = [
            place(x, "bfloat16", *rows),
            place(rounded, "float32", "mlp"),
            place(gradient, "bfloat16", *rows),
        ]
        found = with_gradients(by_kernel, *inputs)
        expected = with_gradients(by_jax, *(x.astype(jnp.float32) for x in inputs))
        for ours, theirs in zip(found, expected, strict=True):
            error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
            assert error < 5e-3  # bfloat16 has 8 significant bits
