"""Rows of an embedding table by id, with a gradient that has the same bits each time.

A row's gradient is the sum over all tokens with its id. JAX writes it as a scatter,
which a GPU computes with atomic additions, in whatever order its threads arrive: two
runs of one step differ in their last bits. XLA's own remedy
(--xla_gpu_deterministic_ops) made a step of BERT-base three times slower.
"""

import jax
import jax.numpy as jnp

from bert_jax.distributed import sharding
from bert_jax.products import precision

# Up to so many rows, of positions above all, a product with one-hot rows is at most
# 0.3% of BERT-base's FLOPs; it takes no sort.
_SMALL = 1024


@jax.custom_vjp
def rows_of(table_RD: jax.Array, ids_BT: jax.Array) -> jax.Array:
    """Returns float32[B, T, D], the table's rows at int32[B, T].

    The table is whole on every device, and every id is one of its rows.

    The gradient is summed in float32: a frequent token's has thousands of terms, of
    which bfloat16 would lose most.
    """
    return _gather(table_RD, ids_BT)


def _gather(table_RD: jax.Array, ids_BT: jax.Array) -> jax.Array:
    out = sharding.spec("batch", "seq", "replicated")
    return table_RD.at[ids_BT].get(out_sharding=out)


def _forward(table_RD, ids_BT):
    return _gather(table_RD, ids_BT), (table_RD, ids_BT)


def _backward(saved, gradient_BTD):
    table_RD, ids_BT = saved
    if sharding.platform() != "gpu":  # others add in an order of their own
        _, vjp = jax.vjp(lambda table_RD: _gather(table_RD, ids_BT), table_RD)
        return *vjp(gradient_BTD), None
    of_ids = _by_product if len(table_RD) <= _SMALL else _by_sorting
    return of_ids(ids_BT, gradient_BTD, len(table_RD)), None


rows_of.defvjp(_forward, _backward)


def _by_product(ids_BT: jax.Array, rows_BTD: jax.Array, size: int) -> jax.Array:
    """Returns [size, D], the sums of the rows of each id."""
    one_hot_BTR = jax.nn.one_hot(ids_BT, size, dtype=rows_BTD.dtype)
    out = sharding.spec("replicated", "replicated")
    return jnp.einsum(
        "BTR,BTD->RD",
        one_hot_BTR,
        rows_BTD,
        precision=precision(rows_BTD.dtype),
        out_sharding=out,
    )


def _by_sorting(ids_BT: jax.Array, rows_BTD: jax.Array, size: int) -> jax.Array:
    """Returns [size, D], the sums of the rows of each id, of a device's rows at a time.

    Sorted by id, the rows of one id are neighbours; a scan whose order is fixed adds
    them up, and the last of each id has the sum.
    """
    D = rows_BTD.shape[-1]

    def add(left, right):
        (left_ids, left_sums), (right_ids, right_sums) = left, right
        is_same = (left_ids == right_ids)[:, None]
        return right_ids, right_sums + jnp.where(is_same, left_sums, 0.0)

    def on_one_device(ids_BT: jax.Array, rows_BTD: jax.Array) -> jax.Array:
        ids_N, rows_ND = ids_BT.ravel(), rows_BTD.reshape(-1, D)
        order_N = jnp.argsort(ids_N)
        ids_N, sums_ND = jax.lax.associative_scan(
            add, (ids_N[order_N], rows_ND[order_N])
        )
        is_last_N = jnp.append(ids_N[1:] != ids_N[:-1], True)
        # No two rows have one target, so no order matters; those past the end are left
        # out.
        target_N = jnp.where(is_last_N, ids_N, size + jnp.arange(len(ids_N)))
        sums_RD = jnp.zeros((size, D), rows_ND.dtype)
        sums_RD = sums_RD.at[target_N].set(sums_ND, mode="drop", unique_indices=True)
        return jax.lax.psum(sums_RD, sharding.RULES["batch"])

    rows = sharding.spec("batch", "seq")
    return jax.shard_map(
        on_one_device,
        in_specs=(rows, sharding.spec("batch", "seq", "replicated")),
        out_specs=sharding.spec("replicated", "replicated"),
    )(ids_BT, rows_BTD)
