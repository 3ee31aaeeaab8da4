"""The base class of encoders, masked language models and fine-tuned models."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.config import MeshConfig
from bert_jax.config.validation import one_of, require
from bert_jax.distributed import devices
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.loading import model as model_lib
from bert_jax.loading.model import HostModel
from bert_jax.model import int8

# A text, or the texts of one input: a pair, or a context and its choices.
Text = str | tuple[str, ...]
Parts = tuple[str, ...]  # the texts of one input
DTYPES = ("float32", "bfloat16")
WEIGHTS = ("float32", "int8")
MIN_LENGTH = 5  # a pair has at least this many tokens: [CLS] x [SEP] y [SEP]


class Model:
    """A model on the current mesh.

    Attributes:
      tokenizer: the tokenizer; `tokenizer.vocab[id]` is the token of an id.
      max_length: maximum tokens of a row.
      notes: a line for each part of the model that is not used.
      num_truncated: number of rows truncated to `max_length` so far.
    """

    def __init__(
        self,
        model: HostModel,
        *,
        max_length: int | None,
        batch_size: int,
        compute_dtype: str,
        weights: str = "float32",
    ):
        """Places a model; see `inference.load` for the options."""
        self.max_length = model.max_length if max_length is None else max_length
        positions = model.config.max_position_embeddings
        if not MIN_LENGTH <= self.max_length <= positions:
            raise ConfigError(
                f"max_length={self.max_length} must be at least {MIN_LENGTH} and at"
                f" most the model's {positions} positions"
            )
        self.tokenizer, self.notes = model.tokenizer, model.notes
        self.num_truncated = 0
        self._batch_size, self._dtype = batch_size, jnp.dtype(compute_dtype)
        self._mesh = jax.sharding.get_mesh()
        placed = model_lib.place(model)
        self._config, self._graphdef, self._params = placed
        if weights == "int8":
            before, self._params = self.num_bytes, int8.quantize(self._params)
            sizes = f"{self.num_bytes / 1e6:,.1f} MB instead of {before / 1e6:,.1f} MB"
            self.notes += (f"int8 weights: {sizes}",)

    @property
    def num_bytes(self) -> int:
        """Returns the size of the weights in bytes."""
        return int8.num_bytes(self._params)


def current_mesh() -> jax.sharding.Mesh:
    """Returns the mesh of `jax.set_mesh`, or one of all devices along the data axis."""
    mesh = jax.sharding.get_mesh()
    if not mesh.empty:
        return mesh
    devices.open_local_devices()
    return mesh_lib.make_mesh(
        MeshConfig(data=-1, fsdp=1, tensor=1, shard_optimizer=False)
    )


def as_parts(texts: Sequence[Text]) -> list[Parts]:
    """Converts the argument of a call to one tuple of texts per input."""
    if isinstance(texts, str):
        raise TypeError(f"texts must be a list of texts, not the string {texts[:60]!r}")
    return [(text,) if isinstance(text, str) else tuple(text) for text in texts]


def check_options(batch_size: int, compute_dtype: str, weights: str) -> None:
    """Checks the options that need no model, before one is read."""
    require(weights in WEIGHTS, "weights", weights, one_of(WEIGHTS))
    is_known = compute_dtype in DTYPES
    require(is_known, "compute_dtype", compute_dtype, one_of(DTYPES))
    require(batch_size >= 1, "batch_size", batch_size, "must be at least 1")
