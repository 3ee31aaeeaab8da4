"""The base class of encoders, masked language models and fine-tuned models."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.config.validation import one_of, require
from bert_jax.distributed import devices
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning.batches import Batching
from bert_jax.loading import model as model_lib
from bert_jax.loading.model import HostModel
from bert_jax.model import int8

# A text, or the texts of one input: a pair, or a context and its choices.
Text = str | tuple[str, ...]
Parts = tuple[str, ...]  # the texts of one input
DTYPES = ("float32", "bfloat16")
WEIGHTS = ("float32", "int8")
MIN_LENGTH = 5  # a pair has at least this many tokens: [CLS] x [SEP] y [SEP]


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `inference.load`, checked before a model is read."""

    max_length: int | None
    batch_size: int
    compute_dtype: str
    weights: str = "float32"

    def __post_init__(self):
        for name, choices in (("weights", WEIGHTS), ("compute_dtype", DTYPES)):
            value = getattr(self, name)
            require(value in choices, name, value, one_of(choices))
        size = self.batch_size
        require(size >= 1, "batch_size", size, "must be at least 1")


class Model:
    """A model on the current mesh.

    Attributes:
      tokenizer: the tokenizer; `tokenizer.vocab[id]` is the token of an id.
      max_length: maximum tokens of a row.
      notes: a line for each part of the model that is not used.
      num_truncated: number of rows truncated to `max_length` so far.
    """

    def __init__(self, model: HostModel, options: Options):
        given = options.max_length
        self.max_length = model.max_length if given is None else given
        positions = model.config.max_position_embeddings
        if not MIN_LENGTH <= self.max_length <= positions:
            raise ConfigError(
                f"max_length={self.max_length} must be at least {MIN_LENGTH} and at"
                f" most the model's {positions} positions"
            )
        self.tokenizer, self.notes = model.tokenizer, model.notes
        self.num_truncated = 0
        self._mesh, dtype = jax.sharding.get_mesh(), jnp.dtype(options.compute_dtype)
        self._batching = Batching(
            self.max_length, options.batch_size, dtype, self._mesh
        )
        self._config, self._graphdef, self._params = model_lib.place(model)
        if options.weights == "int8":
            before, self._params = self.num_bytes, int8.quantize(self._params)
            sizes = f"{self.num_bytes / 1e6:,.1f} MB instead of {before / 1e6:,.1f} MB"
            self.notes += (f"int8 weights: {sizes}",)

    @property
    def num_bytes(self) -> int:
        return sum(x.nbytes for x in jax.tree.leaves(self._params))


def current_mesh() -> jax.sharding.Mesh:
    """Returns the mesh of `jax.set_mesh`, or one of all devices along the data axis."""
    mesh = jax.sharding.get_mesh()
    if not mesh.empty:
        return mesh
    devices.open_local_devices()
    return mesh_lib.make_mesh(mesh_lib.DATA_ONLY)


def as_parts(texts: Sequence[Text]) -> list[Parts]:
    """Converts the argument of a call to one tuple of texts per input."""
    if isinstance(texts, str):
        raise TypeError(f"texts must be a list of texts, not the string {texts[:60]!r}")
    return [(text,) if isinstance(text, str) else tuple(text) for text in texts]
