"""Matrix products and embedding lookup with explicit precision and order.

Products of float32 factors are computed in float32. By default, a TPU rounds such
factors to bfloat16 and a GPU to TF32. Products of bfloat16 factors are exact in the
matrix units and are summed in float32.

A CPU with instructions for bfloat16 (AVX512-BF16) multiplies bfloat16 factors at twice
the rate of float32 ones. XLA uses them in one form of the product only, see
`_dot_general`.

Embedding lookup sums gradients in a fixed order. JAX writes the sum over all tokens
with the same id as a scatter, which a GPU computes with atomic additions in arbitrary
order, so that two runs of one step differ in their last bits. XLA's own remedy
(--xla_gpu_deterministic_ops) made a step of BERT-base three times slower.
"""

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from bert_jax.distributed import sharding

# The largest table whose gradient is a product with one-hot rows, which needs no sort:
# for the position embeddings, it is at most 0.9% of BERT-base's FLOPs.
_SMALL = 1024


def precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """Returns the precision for a product of factors of this dtype."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


def _is_bfloat16_on_cpu(dtype: jnp.dtype) -> bool:
    return dtype == jnp.bfloat16 and sharding.platform() == "cpu"


def _dot_general(
    x: jax.Array,
    y: jax.Array,
    dimension_numbers: jax.lax.DotDimensionNumbers,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: jnp.dtype | None = None,
    out_sharding: jax.P | None = None,
) -> jax.Array:
    """Returns `jax.lax.dot_general`, in the form that XLA computes fast on a CPU.

    XLA on a CPU multiplies bfloat16 factors as such if the result is float32 and the
    summed dims of x are the last ones in memory; otherwise it converts both factors to
    float32 (jaxlib 0.10.2). The layouts are constrained, because XLA would merge a
    transpose of x or of the result into the product, and then not support it. A
    product whose dtype is given as bfloat16 is not changed: devices sum it in bfloat16.
    """
    if not _is_bfloat16_on_cpu(x.dtype) or preferred_element_type == jnp.bfloat16:
        return jax.lax.dot_general(
            x,
            y,
            dimension_numbers,
            precision=precision,
            preferred_element_type=preferred_element_type,
            out_sharding=out_sharding,
        )
    (of_x, of_y), (batch_x, batch_y) = dimension_numbers
    free = [dim for dim in range(x.ndim) if dim not in (*of_x, *batch_x)]
    first, last = range(len(batch_x)), range(x.ndim - len(of_x), x.ndim)
    product = jax.lax.dot_general(
        _row_major(x.transpose((*batch_x, *free, *of_x))),
        y,
        ((last, of_y), (first, batch_y)),
        preferred_element_type=jnp.float32,
        out_sharding=out_sharding,
    )
    return _row_major(product).astype(preferred_element_type or x.dtype)


def _row_major(x: jax.Array) -> jax.Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _times_kernel(
    x: jax.Array, kernel_IO: jax.Array, out_sharding: jax.P | None = None
) -> jax.Array:
    """Returns x @ kernel, [..., I] and [I, O] -> [..., O].

    The kernel is cast to the dtype of x. Its gradient has the kernel's own dtype and
    is rounded to it on each device before it is summed over devices: the gradient of
    a float32 kernel is not rounded, whatever the dtype of x.

    The gradient of the kernel is computed in the layout of the kernel. JAX's own rule
    computes its transpose; the compiler for TPUs up to v6e then lays out the update
    transposed, and copies the parameter and its moments to that layout and back. By
    preflight's estimate, this takes 12% of a BERT-large step with 32 sequences of 128
    tokens on each v5e chip.
    """
    return _dot_general(
        x,
        kernel_IO.astype(x.dtype),
        (((x.ndim - 1,), (0,)), ((), ())),
        precision=precision(x.dtype),
        out_sharding=out_sharding,
    )


times_kernel = jax.custom_vjp(_times_kernel, nondiff_argnums=(2,))


def _times_kernel_forward(x, kernel_IO, out_sharding):
    # Calls the unwrapped function: in the wrapped one, remat would see a call instead
    # of a product, and not save it.
    return _times_kernel(x, kernel_IO, out_sharding), (x, kernel_IO)


def _times_kernel_backward(out_sharding, factors, gradient):
    del out_sharding
    x, kernel_IO = factors
    # Use specs, not shardings, so that arrays on no mesh yet work as well.
    of_x, of_kernel = (jax.typeof(each).sharding.spec for each in factors)
    rows, last = tuple(range(x.ndim - 1)), x.ndim - 1
    return (
        _dot_general(
            gradient,
            kernel_IO.astype(x.dtype),
            (((last,), (1,)), ((), ())),
            precision=precision(x.dtype),
            out_sharding=of_x,
        ),
        _dot_general(
            x,
            gradient,
            ((rows, rows), ((), ())),
            precision=precision(x.dtype),
            preferred_element_type=kernel_IO.dtype,
            out_sharding=of_kernel,
        ),
    )


times_kernel.defvjp(_times_kernel_forward, _times_kernel_backward)


def _plus_bias(
    x: jax.Array, bias_O: jax.Array, product_dtype: jnp.dtype | None = None
) -> jax.Array:
    """Returns x + bias, added in float32 and rounded to the dtype of x.

    On a GPU, the bias is rounded to the dtype of x first.

    The gradient of the bias, a sum over every row of the batch, is float32.

    Args:
      x: [..., O].
      bias_O: float32.
      product_dtype: if bfloat16, a TPU computes the gradient as a product with ones,
        after rounding its terms to this dtype. The matrix unit sums in float32 too, in
        half the cycles of the vector unit by the compiler's final schedule, and in 1/17
        of them by its estimate. A GPU does so if x is float32.
    """
    bias = jnp.expand_dims(bias_O, range(x.ndim - 1))
    if sharding.platform() == "gpu":
        # cuBLAS adds a bias of the result's dtype to the float32 sums of the product.
        return x + bias.astype(x.dtype)
    return (x.astype(jnp.float32) + bias).astype(x.dtype)


plus_bias = jax.custom_vjp(_plus_bias, nondiff_argnums=(2,))


def _plus_bias_forward(x, bias_O, product_dtype):
    return _plus_bias(x, bias_O, product_dtype), bias_O


def _plus_bias_backward(product_dtype, bias_O, gradient):
    rows = tuple(range(gradient.ndim - 1))
    # A GPU rounds the gradient of float32 logits to bfloat16 for two other products.
    # Their bias is the third, because a sum of float32 would read the logits again.
    has_product = {"tpu": True, "gpu": gradient.dtype == jnp.float32}
    is_float32 = product_dtype in (None, jnp.float32)
    if is_float32 or not has_product.get(sharding.platform()):
        return gradient, jnp.sum(gradient.astype(jnp.float32), axis=rows)
    spec = jax.typeof(gradient).sharding.spec

    def on_one_device(gradient: jax.Array) -> jax.Array:
        # The compiler would turn a product with a single row of ones into a sum again.
        ones = jnp.ones((8, *gradient.shape[:-1]), product_dtype)
        sums = jax.lax.dot_general(
            ones,
            gradient.astype(product_dtype),
            ((tuple(i + 1 for i in rows), rows), ((), ())),
            preferred_element_type=jnp.float32,
        )
        return jax.lax.psum(sums[0], tuple(jax.tree.leaves(tuple(spec[:-1]))))

    # Outside of shard_map, all 8 rows would be summed over devices.
    return gradient, jax.shard_map(on_one_device, out_specs=jax.P(spec[-1]))(gradient)


plus_bias.defvjp(_plus_bias_forward, _plus_bias_backward)


def einsum_float32(
    equation: str, x: jax.Array, y: jax.Array, out_sharding: jax.P | None = None
) -> jax.Array:
    """Returns the einsum of x and y as float32, without rounding to their dtype.

    On a GPU and a CPU, the gradient is cast to the dtype of x and y before it is
    multiplied. By JAX's own rule it stays float32, which they multiply at half the rate
    after copying the other factor to float32. On a TPU, the cast would make a step 2%
    slower, by preflight's estimate. Every index is in two of the equation's terms.
    """
    if sharding.platform() == "gpu" or _is_bfloat16_on_cpu(x.dtype):
        return _with_low_gradient(equation, x, y, out_sharding)
    return _einsum(equation, x, y, out_sharding)


def einsum(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the einsum of x and y in their dtype; see `einsum_float32`."""
    if _is_bfloat16_on_cpu(x.dtype):
        return einsum_float32(equation, x, y).astype(x.dtype)
    return jnp.einsum(equation, x, y, precision=precision(x.dtype))


def _einsum(
    equation: str, x: jax.Array, y: jax.Array, out_sharding: jax.P | None
) -> jax.Array:
    return jnp.einsum(
        equation,
        x,
        y,
        precision=precision(x.dtype),
        preferred_element_type=jnp.float32,
        out_sharding=out_sharding,
        _dot_general=_dot_general,
    )


_with_low_gradient = jax.custom_vjp(_einsum, nondiff_argnums=(0, 3))


def _einsum_forward(equation, x, y, out_sharding):
    return _einsum(equation, x, y, out_sharding), (x, y)


def _einsum_backward(equation, out_sharding, factors, gradient):
    del out_sharding
    x, y = factors
    gradient = gradient.astype(x.dtype)
    inputs, output = equation.split("->")
    of_x, of_y = inputs.split(",")

    def product(equation: str, factor: jax.Array, like: jax.Array) -> jax.Array:
        # The sum is float32, over devices as well, and is rounded once.
        out = jax.typeof(like).sharding.spec
        return _einsum(equation, gradient, factor, out).astype(like.dtype)

    return (
        product(f"{output},{of_y}->{of_x}", y, x),
        product(f"{output},{of_x}->{of_y}", x, y),
    )


_with_low_gradient.defvjp(_einsum_forward, _einsum_backward)


@jax.custom_vjp
def embedding_lookup(table_RD: jax.Array, ids_BT: jax.Array) -> jax.Array:
    """Returns float32[B, T, D], the rows of a table at int32[B, T] ids.

    The gradient is summed in float32: the gradient of a frequent token has thousands
    of terms, most of which bfloat16 would lose. The table is replicated.
    """
    return _gather(table_RD, ids_BT)


def _gather(table_RD: jax.Array, ids_BT: jax.Array) -> jax.Array:
    out = sharding.spec("batch", "seq", "replicated")
    return table_RD.at[ids_BT].get(out_sharding=out)


def _forward(table_RD, ids_BT):
    return _gather(table_RD, ids_BT), (table_RD, ids_BT)


def _backward(saved, gradient_BTD):
    table_RD, ids_BT = saved
    if sharding.platform() != "gpu":  # other platforms add in a fixed order
        _, vjp = jax.vjp(lambda table_RD: _gather(table_RD, ids_BT), table_RD)
        return *vjp(gradient_BTD), None
    of_ids = _by_product if len(table_RD) <= _SMALL else _by_sorting
    return of_ids(ids_BT, gradient_BTD, len(table_RD)), None


def _by_product(ids_BT: jax.Array, rows_BTD: jax.Array, size: int) -> jax.Array:
    """Returns [size, D], the sum of the rows of each id, by a product.

    The three pieces of a float32 number have 8 significant bits each, so their
    products with one-hot rows are exact in bfloat16. A GPU multiplies float32 factors
    outside of its matrix units, which took 0.3 of the 79 ms of a step of BERT-base.
    """
    one_hot_BTR = jax.nn.one_hot(ids_BT, size, dtype=jnp.bfloat16)
    pieces, rest_BTD = [], rows_BTD.astype(jnp.float32)
    for _ in range(3):
        # The compiler may remove a cast to bfloat16 and back, but not this rounding.
        piece_BTD = jax.lax.reduce_precision(rest_BTD, exponent_bits=8, mantissa_bits=7)
        pieces.append(piece_BTD.astype(jnp.bfloat16))
        rest_BTD -= piece_BTD
    sums_R3D = jnp.einsum(
        "BTR,BTpD->RpD",
        one_hot_BTR,
        jnp.stack(pieces, axis=2),
        preferred_element_type=jnp.float32,
        out_sharding=sharding.spec("replicated", "replicated", "replicated"),
    )
    return jnp.sum(sums_R3D, axis=1)


def _by_sorting(ids_BT: jax.Array, rows_BTD: jax.Array, size: int) -> jax.Array:
    """Returns [size, D], the sum of the rows of each id, by sorting on each device.

    Sorting by id makes the rows of one id adjacent. A scan in a fixed order adds them
    up, so that the last row of each id holds the sum.
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
        # Every row has a target of its own, so the order does not matter; targets past
        # the end are dropped.
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


embedding_lookup.defvjp(_forward, _backward)


def gather_positions(x_BT: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """Gathers from [B, T] or [B, T, D] at each row's positions: [B, P] or [B, P, D].

    Gradients of equal positions are added, on a GPU in arbitrary order. The result is
    deterministic nevertheless: positions of a row differ, except in empty slots, whose
    gradient is 0.
    """
    if x_BT.shape[0] > 1:
        trailing = (None,) * (x_BT.ndim - 2)
        return jnp.take_along_axis(x_BT, positions_BP[(..., *trailing)], axis=1)
    # take_along_axis cannot infer the sharding of a single row.
    out = sharding.spec("batch", *["replicated"] * (x_BT.ndim - 1))
    return x_BT.at[jnp.zeros_like(positions_BP), positions_BP].get(out_sharding=out)
