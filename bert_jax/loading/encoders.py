"""Reads the pretrained encoder that fine-tuning starts from.

It may be a directory of `export` or of any Hugging Face BERT with safetensors, a TF1
checkpoint of google-research/bert, or a workdir of `train`, whose newest checkpoint is
read.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax import config as config_lib
from bert_jax.checkpoint import workdir
from bert_jax.config import ModelConfig
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError
from bert_jax.interop import files, google_tf1, huggingface_read
from bert_jax.interop.files import Source
from bert_jax.loading import initialize, vocabulary
from bert_jax.loading import model as model_lib
from bert_jax.model import parameters
from bert_jax.model.bert import Bert
from bert_jax.model.parameters import path_name

PREFIX = "bert."  # of the encoder's parameter names in a model with a head
POOLER = "bert.pooler."  # optional: encoders published without heads may lack it
# The meaning of bert_config.json's "gelu" since 2019-02-07. The two forms differ by at
# most 5e-4.
GOOGLE_HIDDEN_ACT = "gelu_new"


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A pretrained encoder in host memory.

    Attributes:
      config: the sizes of the model.
      tokenizer: the tokenizer of the model.
      arrays: float32 parameters by their names in a model with a head. The table of
        tokens has no padding rows.
      notes: a line for each optional part that was missing.
    """

    config: ModelConfig
    tokenizer: tokenizers.Tokenizer
    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...]


def read(path: str, lowercase: bool | None) -> Encoder:
    """Reads a pretrained encoder.

    Args:
      path: a model in one of the formats above.
      lowercase: whether its text was lower-cased, for models that do not record it.

    Raises:
      ConfigError: if there is no such model, or a file is corrupt.
    """
    try:
        absolute = Path(path).expanduser().absolute()
    except RuntimeError:  # ~unknown_user
        raise ConfigError(
            f"--model={path} is not a valid path; use a directory"
        ) from None
    source, values = _open(absolute, path)
    if lowercase is not None and source.lowercase not in (None, lowercase):
        raise ConfigError(
            f"--lowercase={str(lowercase).lower()}, but {source.directory} has"
            f" {str(source.lowercase).lower()}; remove the flag"
        )
    if lowercase is None and source.lowercase is None:
        raise ConfigError(
            f"{source.directory} does not record whether its text was lower-cased; add"
            " --lowercase=true or --lowercase=false"
        )
    config = model_lib.model_config(values, source.directory)
    # If the table is missing, `_check` raises the error.
    vocab_size = source.shapes.get(initialize.WORD, (values.get("vocab_size", 1),))[0]
    _check(source, shapes(config, vocab_size))
    arrays = source.read()
    model_lib.check_finite(arrays, source.directory)
    arrays = {name: a for name, a in arrays.items() if name.startswith(PREFIX)}
    has_pooler = any(name.startswith(POOLER) for name in arrays)
    lowercase = source.lowercase if lowercase is None else lowercase
    tokenizer = model_lib.tokenizer_of(source, vocab_size, lowercase)
    arrays[initialize.WORD] = arrays[initialize.WORD][: len(tokenizer.vocab)]
    return Encoder(
        config,
        tokenizer,
        arrays,
        () if has_pooler else ("the model has no pooler; heads that use one train it",),
    )


def first_layers(encoder: Encoder, num_layers: int) -> Encoder:
    """Returns an encoder of the first `num_layers` layers; 0 keeps all of them.

    Raises:
      ConfigError: if the encoder has fewer layers.
    """
    most = encoder.config.num_hidden_layers
    if num_layers > most:
        raise ConfigError(
            f"config.num_layers={num_layers}, but the model has {most}; set it to"
            f" {most} or less"
        )
    if num_layers in (0, most):
        return encoder
    config = dataclasses.replace(encoder.config, num_hidden_layers=num_layers)
    dropped = tuple(f"{PREFIX}layers.{i}." for i in range(num_layers, most))
    arrays = {
        name: array
        for name, array in encoder.arrays.items()
        if not name.startswith(dropped)
    }
    return dataclasses.replace(encoder, config=config, arrays=arrays)


def shapes(config: ModelConfig, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of an encoder with its pooler, by name."""

    def build(key: jax.Array) -> tuple[nnx.GraphDef, nnx.State]:
        return nnx.split(Bert(config, vocab_size, nnx.Rngs(params=key)))

    _, params = parameters.structure(build)
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {PREFIX + path_name(path): leaf.shape for path, leaf in leaves}


def _open(path: Path, given: str) -> tuple[Source, dict[str, Any]]:
    """Opens a model; returns it with its config's values, by config.model's keys."""
    if initialize.is_workdir(path):
        config = workdir.read_config(str(path))
        assert config is not None, "is_workdir has found config.json"
        return initialize.open_workdir(path), dataclasses.asdict(config.model)
    if google_tf1.is_source(path):
        files.verify_digests(path if path.is_dir() else path.parent)
        values = google_tf1.config_values(path) | {"hidden_act": GOOGLE_HIDDEN_ACT}
        names = _names(values, path)
        return google_tf1.open_source(path, names), values
    if (path / "config.json").is_file():
        files.verify_digests(path)
        values = huggingface_read.config_values(path)
        names = _names(values, path / "config.json")
        file = tokenizers.WordPiece.FILE
        return huggingface_read.open_source(path, names, file), values
    problem = "has no config.json" if path.is_dir() else "is not a directory"
    raise ConfigError(
        f"--model={given} {problem}; use a directory of python -m bert_jax.export or"
        " of a Hugging Face BERT, a TF1 checkpoint with bert_config.json, or a workdir"
        " of python -m bert_jax.train"
    )


def _names(values: dict[str, Any], path: Path) -> list[str]:
    vocab_size = config_lib.build(int, values.get("vocab_size"), f"{path}: vocab_size")
    return list(shapes(model_lib.model_config(values, path), vocab_size))


def _check(source: Source, wanted: dict[str, tuple[int, ...]]) -> None:
    """Raises ConfigError if tensors are missing or their shapes differ."""
    missing = [
        name
        for name in wanted
        if name not in source.shapes and not name.startswith(POOLER)
    ]
    if missing:
        raise ConfigError(
            f"{source.directory} lacks {len(missing)} of the encoder's tensors:"
            f" {vocabulary.some(missing)}"
        )
    wrong = [
        f"{name} is {list(source.shapes[name])}, expected {list(shape)}"
        for name, shape in wanted.items()
        if source.shapes.get(name, shape) != shape
    ]
    if wrong:
        raise ConfigError(
            f"{source.directory} does not match its own config in {len(wrong)}"
            f" tensor(s): {vocabulary.some(wrong)}"
        )
