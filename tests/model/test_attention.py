"""The einsums against a softmax with its own gradient, and the choice of the kernel."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.distributed import sharding
from bert_jax.model import attention, ops
from bert_jax.model.dropout import Seed, dropout, row_indices
from tests.conftest import use_mesh


@dataclasses.dataclass
class Case:
    length: int = 512
    num_heads: int = 12
    head_dim: int = 64
    dtype: str = "bfloat16"
    kind: str = "TPU v5 lite"
    num_queries: int = 512
    tensor: int = 1


@pytest.mark.parametrize(
    ("has_kernel", "case"),
    [
        (True, Case()),
        (True, Case(kind="TPU v6 lite")),
        (True, Case(tensor=2)),
        (False, Case(kind="TPU v3")),
        (False, Case(kind="TPU7x")),
        (True, Case(kind="NVIDIA H200")),
        (True, Case(kind="NVIDIA H100 80GB HBM3", length=128, num_queries=128)),
        (False, Case(kind="NVIDIA H200", length=80, num_queries=80)),
        (False, Case(kind="NVIDIA H200", dtype="float32")),
        (False, Case(kind="NVIDIA H200", head_dim=48, num_heads=16)),
        (True, Case(kind="NVIDIA H200", head_dim=32, num_heads=24)),
        (False, Case(kind="NVIDIA H200", head_dim=128, num_heads=6)),
        (False, Case(kind="NVIDIA L4")),
        (False, Case(kind="cpu")),
        (False, Case(dtype="float32")),
        (False, Case(length=128, num_queries=128)),
        (False, Case(num_queries=80)),
        (False, Case(head_dim=48, num_heads=16)),
        (False, Case(num_heads=4, tensor=4)),  # half a block on each device
    ],
)
def test_kernel_is_used_where_it_is_faster(monkeypatch, has_kernel, case):
    mesh = use_mesh(1, 1, case.tensor)
    monkeypatch.setattr(sharding, "device_kind", lambda: case.kind)

    def array(length, dtype, *dims):
        shape = (2, length, case.num_heads * case.head_dim)[: len(dims)]
        layout = jax.NamedSharding(mesh, sharding.spec(*dims))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=layout)

    q, *kv = (
        array(length, case.dtype, "batch", "seq", "heads")
        for length in (case.num_queries, case.length, case.length)
    )
    query_ids, key_ids = (
        array(length, jnp.int32, "batch", "seq")
        for length in (case.num_queries, case.length)
    )
    attend = functools.partial(
        attention.attention, num_heads=case.num_heads, rate=0.1, seed=None
    )
    program = str(jax.make_jaxpr(attend)((q, *kv), query_ids, key_ids))
    assert ("pallas_call" in program) == has_kernel


def by_softmax(projections, query_ids_BT, key_ids_BS, num_heads, rate, seed):
    """Returns the context as Vaswani et al. 2017 define it, with JAX's gradient."""
    q, k, v = (attention._split_heads(x, num_heads) for x in projections)
    scores = ops.einsum_float32("BTNH,BSNH->BNTS", q, k) / q.shape[-1] ** 0.5
    mask = attention.attention_mask(query_ids_BT, key_ids_BS)
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    weights = dropout(weights.astype(q.dtype), rate, seed)
    context = ops.einsum_float32("BNTS,BSNH->BTNH", weights, v)
    return context.reshape(projections[0].shape)


@pytest.mark.parametrize(
    ("is_dropped", "num_queries", "dtype", "tolerance"),
    [
        (False, 24, "float32", 2e-6),
        (True, 5, "float32", 2e-6),
        (True, 24, "bfloat16", 2e-2),
    ],
)
def test_context_and_gradients_equal_those_of_a_softmax(
    is_dropped, num_queries, dtype, tolerance
):
    B, S, D, num_heads = 3, 24, 32, 4
    random = np.random.default_rng(0)
    ids_BS = np.sort(random.integers(0, 4, (B, S)))[:, ::-1]  # 0: padding, at the end
    layout = jax.NamedSharding(
        use_mesh(1, 1, 1), sharding.spec("batch", "seq", "heads")
    )
    q, k, v, gradient = (
        jax.device_put(
            jnp.asarray(2 * random.normal(size=(B, length, D)), dtype), layout
        )
        for length in (num_queries, S, S, num_queries)
    )
    ids = (ids_BS[:, :num_queries], ids_BS)
    words = jnp.array([7, 9], jnp.uint32)
    seed = Seed(words, row_indices(B)) if is_dropped else None

    @functools.partial(jax.jit, static_argnums=0)
    def compute(attend, *arrays):
        context, vjp = jax.vjp(
            lambda *x: attend(x, *ids, num_heads, 0.4, seed), *arrays[:3]
        )
        return context, *vjp(arrays[3].astype(context.dtype))

    found = compute(attention.attention, q, k, v, gradient)
    exact = (x.astype(jnp.float32) for x in (q, k, v, gradient))
    for ours, theirs in zip(found, compute(by_softmax, *exact), strict=True):
        assert ours.dtype == dtype
        difference = np.linalg.norm(np.asarray(ours, np.float32) - theirs)
        assert difference <= tolerance * np.linalg.norm(theirs)
