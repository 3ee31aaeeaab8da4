"""Selects the activations for which the Pallas kernels for GPUs are used; runs them.

They were measured on an NVIDIA H200 and are written with Pallas' Triton backend, which
JAX 0.12 deprecates. With a later JAX that lacks it, on other GPUs, in float32 and for
rows of other lengths, XLA's operations compute the same function.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.distributed import sharding

KINDS = ("NVIDIA H100", "NVIDIA H200")  # prefixes of device kinds
MIN_LENGTH = 64  # the length of a row is a multiple


def has_kernels(x_BTD: jax.Array) -> bool:
    """Returns whether kernels compute on activations like this one."""
    return (
        sharding.device_kind().startswith(KINDS)
        and x_BTD.dtype == jnp.bfloat16
        and x_BTD.ndim == 3
        and x_BTD.shape[1] % MIN_LENGTH == 0
        and _has_backend()
    )


@functools.cache
def _has_backend() -> bool:
    is_there = importlib.util.find_spec("jax.experimental.pallas.triton") is not None
    if not is_there:
        print(
            f"JAX {jax.__version__} lacks the Triton backend of the kernels for GPUs:"
            " steps are slower without them; requirements.txt has a JAX with it",
            file=sys.stderr,
        )
    return is_there


def run(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    arrays: tuple[jax.Array, ...],
    out_shapes: tuple[jax.ShapeDtypeStruct, ...],
    *,
    interpret: bool,
    by_row: bool = False,
    **options: int,
) -> tuple[jax.Array, ...]:
    """Runs a kernel, which gets a reference to each array.

    Args:
      interpret: emulate the kernel on a CPU.
      by_row: the references are to the row that the grid's first index numbers.
      options: of triton.CompilerParams.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def block(x: Any) -> pl.BlockSpec:
        first = 1 if by_row else x.shape[0]
        zeros = (0,) * (x.ndim - 1)
        return pl.BlockSpec(
            (first, *x.shape[1:]), lambda row, *_: (row if by_row else 0, *zeros)
        )

    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=list(map(block, arrays)),
        out_specs=tuple(map(block, out_shapes)),
        out_shape=out_shapes,
        compiler_params=triton.CompilerParams(**options),
        interpret=interpret,
    )(*arrays)


def on_each_device(function: Callable[..., Any], out_specs: Any) -> Callable[..., Any]:
    # Pallas gives no axes along which its results vary, so they are not checked.
    return jax.shard_map(function, out_specs=out_specs, check_vma=False)
