"""Options that encoders and fine-tuned models share: inputs, mesh, lengths, dtypes."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.config import MeshConfig
from bert_jax.distributed import devices
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.loading.model import PlacedModel

# A text, or the texts of one input: a pair, or a context and its choices.
Text = str | tuple[str, ...]
Parts = tuple[str, ...]  # the texts of one input
DTYPES = ("float32", "bfloat16")
WEIGHTS = ("float32", "int8")
MIN_LENGTH = 5  # a pair has at least this many tokens: [CLS] x [SEP] y [SEP]


def current_mesh() -> jax.sharding.Mesh:
    """Returns the mesh of `jax.set_mesh`, or one of all devices along the data axis.

    Raises:
      ConfigError: if the devices cannot be opened.
    """
    mesh = jax.sharding.get_mesh()
    if not mesh.empty:
        return mesh
    devices.open_local_devices()
    return mesh_lib.make_mesh(
        MeshConfig(data=-1, fsdp=1, tensor=1, shard_optimizer=False)
    )


def as_parts(texts: Sequence[Text]) -> list[Parts]:
    """Converts the argument of a call to one tuple of texts per input.

    Raises:
      TypeError: if `texts` is a single string.
    """
    if isinstance(texts, str):
        raise TypeError(f"texts must be a list of texts, not the string {texts[:60]!r}")
    return [(text,) if isinstance(text, str) else tuple(text) for text in texts]


def row_length(model: PlacedModel, max_length: int | None) -> int:
    """Returns max_length, or the model's own if it is None.

    Raises:
      ConfigError: if it is out of range.
    """
    length = model.max_length if max_length is None else max_length
    positions = model.config.max_position_embeddings
    if not MIN_LENGTH <= length <= positions:
        raise ConfigError(
            f"max_length={length} must be at least {MIN_LENGTH} and at most the model's"
            f" {positions} positions"
        )
    return length


def dtype_of(compute_dtype: str) -> jnp.dtype:
    """Returns the dtype of a name in DTYPES.

    Raises:
      ConfigError: for any other name.
    """
    check_choice("compute_dtype", compute_dtype, DTYPES)
    return jnp.dtype(compute_dtype)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises ConfigError if the value of an option is not one of its choices."""
    if value not in choices:
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(choices)}")


def check_positive(name: str, value: int) -> None:
    """Raises ConfigError if the value of an option is less than 1."""
    if value < 1:
        raise ConfigError(f"{name}={value} must be at least 1")
