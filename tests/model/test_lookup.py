"""Tests of embedding_lookup and of its gradient on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.distributed import sharding
from bert_jax.model import ops
from tests.conftest import use_mesh

ROWS, WIDTH = 50, 6


@pytest.fixture
def table_and_ids():
    """A table and ids: some rows are looked up often, some once, one never."""
    random = np.random.default_rng(0)
    ids = random.zipf(1.3, (8, 31)).clip(max=ROWS - 2).astype(np.int32)
    return random.normal(size=(ROWS, WIDTH)).astype(np.float32), ids


def gradient(table, ids, weights, mesh):
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
def test_gpu_gradient_is_the_same_without_scatter_add(
    monkeypatch, table_and_ids, mesh_shape, small
):
    mesh = use_mesh(*mesh_shape)
    table, ids = table_and_ids
    weights = np.random.default_rng(1).normal(size=(*ids.shape, WIDTH))
    exact = np.zeros((ROWS, WIDTH))
    np.add.at(exact, ids, weights)
    weights = weights.astype(np.float32)
    monkeypatch.setattr(ops, "_SMALL", small)

    plain_program, plain = gradient(table, ids, weights, mesh)
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    program, found = gradient(table, ids, weights, mesh)

    assert "scatter-add" in plain_program
    assert "scatter-add" not in program
    np.testing.assert_allclose(plain, exact, atol=1e-5)
    np.testing.assert_allclose(found, exact, atol=1e-5)
    assert np.all(found[ROWS - 1] == 0)  # the row that is never looked up


def test_embedding_lookup_returns_the_rows(table_and_ids):
    table, ids = table_and_ids
    np.testing.assert_array_equal(
        ops.embedding_lookup(jnp.asarray(table), ids), table[ids]
    )


def test_gradient_of_65536_equal_ids_is_accurate(monkeypatch):
    """The terms are summed as a tree, not one after the other."""
    mesh = use_mesh(1, 1, 1)
    monkeypatch.setattr(ops, "_SMALL", 0)
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    weights = np.random.default_rng(2).uniform(size=(512, 128, 1)).astype(np.float32)
    ids = np.full(weights.shape[:2], 3, np.int32)
    _, found = gradient(np.zeros((7, 1), np.float32), ids, weights, mesh)
    exact = weights.sum(dtype=np.float64)
    assert abs(found[3, 0] - exact) < 1e-6 * exact
    assert np.all(np.delete(found, 3, axis=0) == 0)
