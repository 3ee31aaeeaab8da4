"""Selects the activations for which the Pallas kernels for GPUs are used.

They were measured on an NVIDIA H200 and are written with Pallas' Triton backend, which
JAX 0.12 deprecates. With a later JAX that lacks it, on other GPUs, in float32 and for
rows of other lengths, XLA's operations compute the same function.
"""

import functools
import importlib.util
import sys

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
