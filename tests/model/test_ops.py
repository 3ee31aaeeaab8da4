"""Tests of bert_jax.model.ops: products and embedding lookup."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.distributed import sharding
from bert_jax.model import ops
from bert_jax.model.bert import REMAT_POLICIES
from bert_jax.model.ops import einsum_float32, times_kernel
from tests.conftest import use_mesh

EQUATION = "BTNH,BSNH->BNTS"


def arrays(dtype):
    random = np.random.default_rng(0)
    shapes = ((2, 5, 3, 4), (2, 7, 3, 4), (2, 3, 5, 7))
    q, k, weights = (random.normal(size=shape) for shape in shapes)
    return jnp.asarray(q, dtype), jnp.asarray(k, dtype), jnp.asarray(weights, "float32")


def gradients(product, q, k, weights):
    def total(q, k):
        return jnp.sum(product(EQUATION, q, k) * weights)

    return jax.make_jaxpr(jax.grad(total, (0, 1)))(q, k), jax.grad(total, (0, 1))(q, k)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2)]
)
def test_einsum_float32_equals_einsum_and_its_gradients(
    monkeypatch, dtype, tolerance, platform
):
    monkeypatch.setattr(sharding, "platform", lambda: platform)
    q, k, weights = arrays(dtype)
    exact = jnp.einsum(EQUATION, q, k, preferred_element_type=jnp.float32)
    found = einsum_float32(EQUATION, q, k)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, exact)
    _, found = gradients(einsum_float32, q, k, weights)
    _, exact = gradients(jnp.einsum, q.astype("float32"), k.astype("float32"), weights)
    assert all(x.dtype == dtype for x in jax.tree.leaves(found))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        error = np.linalg.norm(np.asarray(x, np.float64) - np.asarray(y, np.float64))
        assert error <= tolerance * np.linalg.norm(y)


def test_gpu_gradient_is_summed_over_devices_in_float32(monkeypatch):
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    use_mesh(8, 1, 1)
    rows, table = (jax.P("data", None, None), jax.P(None, None))
    x = jax.device_put(jnp.ones((8, 3, 4), jnp.bfloat16), rows)
    y = jax.device_put(jnp.ones((5, 4), jnp.bfloat16), table)

    @jax.jit
    def gradient(x, y):
        total = lambda y: jnp.sum(einsum_float32("BPD,VD->BPV", x, y, rows))  # noqa: E731
        return jax.grad(total)(y)

    program = gradient.lower(x, y).compile().as_text()
    reduced = [line for line in program.splitlines() if " all-reduce(" in line]
    assert reduced and all("= f32[" in line for line in reduced)
    assert gradient(x, y).dtype == jnp.bfloat16


EQUATIONS = ("BTNH,BSNH->BNTS", "BNTS,BSNH->BTNH", "BPD,VD->BPV")
SIZES = dict(zip("BNTSHPDV", (2, 3, 24, 32, 16, 12, 16, 48), strict=True))


@pytest.mark.parametrize("equation", [*EQUATIONS, "ni,io->no", "bni,io->bno"])
@pytest.mark.parametrize("num_devices", [1, 8])
def test_cpu_multiplies_bfloat16_factors_without_converting_them(equation, num_devices):
    """Also runs the program: XLA compiles forms that it then cannot run."""
    use_mesh(num_devices, 1, 1)
    sizes = SIZES | dict(zip("bnio", (4, 8, 24, 32), strict=True))
    of_x, of_y = equation.split("->")[0].split(",")
    random = np.random.default_rng(0)
    x, y = (
        jnp.asarray(random.normal(size=[sizes[i] for i in term]), jnp.bfloat16)
        for term in (of_x, of_y)
    )

    def product(x, y):
        if equation.startswith(("n", "b")):
            return times_kernel(x, y.astype(jnp.float32))
        return ops.einsum(equation, x, y)

    def reference(x, y):
        return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)

    def with_gradients(function, x, y):
        out, gradients = jax.vjp(function, x, y)
        return out, gradients(jnp.ones_like(out))

    compiled = jax.jit(functools.partial(with_gradients, product)).lower(x, y).compile()
    program = compiled.as_text() or ""
    dots = re.findall(r" dot\(%([\w.-]+), %([\w.-]+)\)", program)
    assert len(dots) == 3
    for factor in {factor for factors in dots for factor in factors}:
        assert re.search(rf"%{re.escape(factor)} = bf16\[", program), factor
    exact = with_gradients(reference, x.astype("float32"), y.astype("float32"))
    found = compiled(x, y)
    for ours, theirs in zip(
        jax.tree.leaves(found), jax.tree.leaves(exact), strict=True
    ):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_allclose(ours.astype("float32"), theirs, 1e-2, 1e-2)


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_times_kernel_equals_the_product_and_its_gradients(shape, dtype):
    random = np.random.default_rng(0)
    x, kernel, weights = (
        jnp.asarray(random.normal(size=size), dtype)
        for size in (shape, (4, 5), (*shape[:-1], 5))
    )
    found, gradients = jax.vjp(times_kernel, x, kernel)
    exact, exact_gradients = jax.vjp(jnp.dot, x, kernel)
    np.testing.assert_array_equal(found, exact)
    tolerance = 1e-6 if dtype == "float32" else 1e-2
    for ours, theirs in zip(gradients(weights), exact_gradients(weights), strict=True):
        assert ours.dtype == dtype
        ours, theirs = (np.asarray(each, np.float64) for each in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, tolerance, tolerance)


def test_gradient_of_a_kernel_is_not_transposed():
    def total(x, kernel):
        return jnp.sum(times_kernel(x, kernel))

    x, kernel = jnp.ones((2, 3, 4)), jnp.ones((4, 5))
    program = jax.make_jaxpr(jax.grad(total, 1))(x, kernel)
    assert "dot_general" in str(program) and "transpose" not in str(program)
    of_jax = jax.make_jaxpr(jax.grad(lambda x, y: jnp.sum(jnp.dot(x, y)), 1))(x, kernel)
    assert "transpose" in str(of_jax)  # when this fails, times_kernel can be removed


@pytest.mark.parametrize("kernel_spec", [("fsdp", "tensor"), ("tensor", "fsdp")])
def test_gradients_have_the_sharding_of_their_factors(kernel_spec):
    use_mesh(2, 2, 2)
    rows, kernel_spec = ("data", "fsdp"), jax.P(*kernel_spec)
    out = jax.P(rows, None, "tensor" if kernel_spec[1] == "tensor" else None)
    split = jax.P(rows, None, "tensor" if kernel_spec[0] == "tensor" else None)
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 3, 4)).astype(np.float32)
    kernel = random.normal(size=(4, 6)).astype(np.float32)

    @jax.jit
    def gradients(x, kernel):
        def total(x, kernel):
            return jnp.sum(jnp.square(times_kernel(x, kernel, out)))

        return jax.grad(total, (0, 1))(x, kernel)

    found = gradients(jax.device_put(x, split), jax.device_put(kernel, kernel_spec))
    assert jax.typeof(found[0]).sharding.spec == split
    assert jax.typeof(found[1]).sharding.spec == kernel_spec
    y = x @ kernel
    np.testing.assert_allclose(found[0], 2 * y @ kernel.T, rtol=1e-5)
    np.testing.assert_allclose(found[1], 2 * np.einsum("btd,btf->df", x, y), rtol=1e-5)


@pytest.mark.parametrize(("remat", "num_products"), [("matmuls", 3), ("full", 4)])
def test_remat_policy_matmuls_saves_the_product(remat, num_products):
    def layer(x, kernel):
        return jnp.sin(times_kernel(x, kernel))

    kept = jax.checkpoint(layer, policy=REMAT_POLICIES[remat])
    total = lambda x, kernel: jnp.sum(kept(x, kernel))  # noqa: E731
    x, kernel = jnp.ones((2, 3, 4)), jnp.ones((4, 5))
    program = jax.make_jaxpr(jax.grad(total, (0, 1)))(x, kernel)
    assert str(program).count("dot_general[") == num_products


def test_times_kernel_has_a_gradient_for_a_kernel_on_no_mesh():
    use_mesh(4, 2, 1)
    x = jax.device_put(jnp.ones((8, 3, 4)), jax.P(("data", "fsdp"), None, None))

    @jax.jit
    def gradient(x, kernel):
        return jax.grad(lambda kernel: jnp.sum(times_kernel(x, kernel)))(kernel)

    np.testing.assert_array_equal(gradient(x, np.ones((4, 5), np.float32)), 24.0)


def test_gradient_of_a_float32_kernel_is_not_rounded_to_the_dtype_of_activations():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(64, 4)), jnp.bfloat16)
    kernel = jnp.asarray(random.normal(size=(4, 5)), jnp.float32)
    y, gradients = jax.vjp(times_kernel, x, kernel)
    assert y.dtype == jnp.bfloat16
    weights = jnp.asarray(random.normal(size=(64, 5)), jnp.bfloat16)
    of_x, of_kernel = gradients(weights)
    assert (of_x.dtype, of_kernel.dtype) == (jnp.bfloat16, jnp.float32)
    exact = np.asarray(x, np.float64).T @ np.asarray(weights, np.float64)
    np.testing.assert_allclose(of_kernel, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("platform", ["cpu", "tpu", "gpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient_of_a_bias_is_a_float32_sum(monkeypatch, platform, dtype):
    monkeypatch.setattr(sharding, "platform", lambda: platform)
    use_mesh(2, 2, 2)
    spec = jax.P(("data", "fsdp"), None, "tensor")
    random = np.random.default_rng(0)
    x, weights = (
        jax.device_put(jnp.asarray(random.normal(size=(8, 512, 6)), dtype), spec)
        for _ in range(2)
    )
    bias = jax.device_put(
        jnp.asarray(random.normal(size=6), "float32"), jax.P("tensor")
    )

    @jax.jit
    def both(x, bias, weights):
        plus_bias = lambda x, bias: ops.plus_bias(x, bias, x.dtype)  # noqa: E731
        y, gradients = jax.vjp(plus_bias, x, bias)
        return y, *gradients(weights)

    y, of_x, of_bias = both(x, bias, weights)
    added = bias.astype(dtype).astype("float32") if platform == "gpu" else bias
    np.testing.assert_array_equal(
        y, (x.astype("float32") + added[None, None]).astype(dtype)
    )
    np.testing.assert_array_equal(of_x, weights)
    assert of_bias.dtype == jnp.float32
    assert jax.typeof(of_bias).sharding.spec == jax.P("tensor")
    exact = np.asarray(weights, np.float64).sum((0, 1))
    np.testing.assert_allclose(of_bias, exact, rtol=1e-4, atol=1e-3)
    has_product = "dot_general" in str(jax.make_jaxpr(both)(x, bias, weights))
    assert has_product == (platform == "tpu" and dtype == "bfloat16")


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_gradient_of_a_bias_is_rounded_to_a_given_dtype(monkeypatch, platform):
    monkeypatch.setattr(sharding, "platform", lambda: platform)
    weights = np.full((3, 2), 1 + 2.0**-12, np.float32)

    def of_bias(dtype):
        _, gradients = jax.vjp(
            lambda bias: ops.plus_bias(jnp.zeros((3, 2)), bias, dtype), jnp.zeros(2)
        )
        return gradients(jnp.asarray(weights))[0]

    np.testing.assert_array_equal(of_bias(None), weights.sum(0))
    np.testing.assert_array_equal(of_bias(jnp.bfloat16), 3.0)


# ----------------------------------------------------------------- embedding lookup


ROWS, WIDTH = 50, 6


def lookup_gradient(table, ids, weights, mesh):
    """Returns the gradient of a weighted sum of rows: its program and its value."""
    place = lambda x: sharding.place_batch({"x": x}, mesh)["x"]  # noqa: E731
    table = jax.device_put(table, jax.NamedSharding(mesh, jax.P(None, None)))

    @jax.jit
    def of(table, ids, weights):
        return jax.grad(lambda t: jnp.sum(ops.embedding_lookup(t, ids) * weights))(
            table
        )

    arguments = (table, place(ids), place(weights))
    return str(jax.make_jaxpr(of)(*arguments)), np.asarray(of(*arguments))


@pytest.mark.parametrize("mesh_shape", [(1, 1, 1), (2, 2, 2)])
@pytest.mark.parametrize("small", [0, 1024])
def test_gpu_gradient_is_the_same_without_scatter_add(monkeypatch, mesh_shape, small):
    mesh = use_mesh(*mesh_shape)
    random = np.random.default_rng(0)
    # Some rows are looked up often, some once, one never.
    ids = random.zipf(1.3, (8, 31)).clip(max=ROWS - 2).astype(np.int32)
    table = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(*ids.shape, WIDTH))
    exact = np.zeros((ROWS, WIDTH))
    np.add.at(exact, ids, weights)
    weights = weights.astype(np.float32)
    monkeypatch.setattr(ops, "_SMALL", small)

    plain_program, plain = lookup_gradient(table, ids, weights, mesh)
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    program, found = lookup_gradient(table, ids, weights, mesh)

    assert "scatter-add" in plain_program
    assert "scatter-add" not in program
    np.testing.assert_allclose(plain, exact, atol=1e-5)
    np.testing.assert_allclose(found, exact, atol=1e-5)
    assert np.all(found[ROWS - 1] == 0)  # the row that is never looked up


def test_gpu_gradient_of_distinct_ids_has_all_bits(monkeypatch):
    """The three pieces of a float32 number add up to it."""
    mesh = use_mesh(1, 1, 1)
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    random = np.random.default_rng(0)
    table = jnp.zeros((ROWS, WIDTH))
    weights = random.normal(size=(2, ROWS // 2, WIDTH)).astype(np.float32)
    ids = random.permutation(ROWS).reshape(2, -1).astype(np.int32)
    _, found = lookup_gradient(table, ids, weights, mesh)
    np.testing.assert_array_equal(found[ids], weights)


def test_gradient_of_65536_equal_ids_is_accurate(monkeypatch):
    """The terms are summed as a tree, not one after the other."""
    mesh = use_mesh(1, 1, 1)
    monkeypatch.setattr(ops, "_SMALL", 0)
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    weights = np.random.default_rng(2).uniform(size=(512, 128, 1)).astype(np.float32)
    ids = np.full(weights.shape[:2], 3, np.int32)
    _, found = lookup_gradient(np.zeros((7, 1), np.float32), ids, weights, mesh)
    exact = weights.sum(dtype=np.float64)
    assert abs(found[3, 0] - exact) < 1e-6 * exact
    assert np.all(np.delete(found, 3, axis=0) == 0)
