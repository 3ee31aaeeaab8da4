"""Selects the activations for which the Pallas kernels for GPUs are used.

They were measured on an NVIDIA H200 and are written with Pallas' Triton backend, which
JAX 0.12 deprecates. On other GPUs, in float32 and for rows of other lengths, XLA's
operations compute the same function.
"""

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
    )
