"""The choice between the attention kernel and the einsums."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from bert_jax.distributed import sharding
from bert_jax.model import attention
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
        (True, Case(kind="TPU7x")),
        (True, Case(tensor=2)),
        (False, Case(kind="TPU v3")),
        (False, Case(kind="NVIDIA H200")),
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
    program = str(jax.make_jaxpr(attend)(q, *kv, query_ids, key_ids))
    assert ("pallas_call" in program) == has_kernel
