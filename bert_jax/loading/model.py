"""Reads a model and its config from a directory.

The directory is one of `export` or `finetune`, or any Hugging Face BERT with
safetensors. initialize.py reads models whose sizes are given by the config of a run.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax import config as config_lib
from bert_jax.config import ModelConfig, TokenizerConfig, TokenizerKind
from bert_jax.data.tokenizers import sentencepiece, tokenizers
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.interop import (
    files,
    huggingface_config,
    huggingface_read,
    sentence_transformers,
)
from bert_jax.interop.files import Source
from bert_jax.model import heads, parameters
from bert_jax.model.bert import Bert
from bert_jax.model.heads import Head
from bert_jax.model.parameters import path_name


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model on the mesh.

    Attributes:
      config: the sizes of the model.
      head: the task head; None for an encoder, which has no pooler.
      tokenizer: the tokenizer of the model.
      max_length: the maximum tokens of a row.
      graphdef: the graphdef of `Bert` or of the module in `heads.KINDS`.
      params: float32 parameters.
    """

    config: ModelConfig
    head: Head | None
    tokenizer: tokenizers.Tokenizer
    max_length: int
    graphdef: nnx.GraphDef
    params: Any


@dataclasses.dataclass(frozen=True)
class Opened:
    """A trained model in host memory.

    Attributes:
      config, head, tokenizer, max_length: as in `Trained`.
      vocab_size: the number of rows of the table of tokens.
      arrays: float32 parameters by our names.
    """

    config: ModelConfig
    head: Head | None
    tokenizer: tokenizers.Tokenizer
    vocab_size: int
    max_length: int
    arrays: dict[str, np.ndarray]


def read_encoder(path: str) -> Trained:
    """Reads the encoder of a model and ignores its heads.

    Raises:
      ConfigError: if there is no model, a file is corrupt, or the model does not divide
        over the mesh.
    """
    return lay_out(_open(_directory(path, "--model", is_encoder=True), None))


def read_tuned(path: str) -> Trained:
    """Reads a fine-tuned model with its head.

    Raises:
      ConfigError: as `read_encoder`.
    """
    return lay_out(open_tuned(path, "--model"))


def open_tuned(path: str, given_as: str) -> Opened:
    """Reads a fine-tuned model with its head into host memory.

    Args:
      path: the directory of the model.
      given_as: the flag or key that names it, for error messages.

    Raises:
      ConfigError: as `read_encoder`.
    """
    directory = _directory(path, given_as)
    values = huggingface_read.config_values(directory)
    return _open(directory, huggingface_config.parse(values, directory / "config.json"))


def _directory(path: str, given_as: str, *, is_encoder: bool = False) -> Path:
    try:
        directory = Path(path).expanduser().absolute()
    except RuntimeError:  # ~unknown_user
        raise ConfigError(
            f"{given_as}={path} is not a valid path; use a directory"
        ) from None
    if (directory / "checkpoints").is_dir():
        raise ConfigError(
            f"{given_as}={path} is the workdir of a run; export its model with python"
            f" -m bert_jax.export --workdir={path} --output=DIR, and use DIR"
        )
    if not (directory / "config.json").is_file():
        if (directory / "model" / "config.json").is_file():
            raise ConfigError(f"{given_as}={path} has no config.json; use {path}/model")
        problem = "has no config.json" if directory.is_dir() else "is not a directory"
        made_by = "export" if is_encoder else "finetune (WORKDIR/model)"
        raise ConfigError(
            f"{given_as}={path} {problem}; use a directory of python -m"
            f" bert_jax.{made_by} or of a Hugging Face BERT"
        )
    files.verify_digests(directory)
    return directory


def _open(directory: Path, head: Head | None) -> Opened:
    values = huggingface_read.config_values(directory)
    config = model_config(values, directory / "config.json")
    vocab_size = config_lib.build(
        int, values.get("vocab_size"), f"{directory}: vocab_size"
    )
    _, abstract = parameters.structure(_builder(config, vocab_size, head))
    shapes = {name: leaf.shape for name, leaf in _named(abstract, head)}
    source = huggingface_read.open_source(directory, shapes, tokenizers.WordPiece.FILE)
    _check_shapes(source, shapes)
    arrays = source.read()
    check_finite(arrays, directory)
    tokenizer = tokenizer_of(source, vocab_size, source.lowercase)
    limits = (
        config.max_position_embeddings,
        huggingface_read.max_length(directory),
        sentence_transformers.sequence_length(directory),
    )
    max_length = min(limit for limit in limits if limit is not None)
    return Opened(config, head, tokenizer, vocab_size, max_length, arrays)


def lay_out(model: Opened) -> Trained:
    """Places the parameters of a model on the mesh."""
    graphdef, abstract = parameters.structure(
        _builder(model.config, model.vocab_size, model.head)
    )
    mesh = jax.sharding.get_mesh()
    params = [
        jax.device_put(model.arrays[name], jax.NamedSharding(mesh, leaf.sharding.spec))
        for name, leaf in _named(abstract, model.head)
    ]
    return Trained(
        model.config,
        model.head,
        model.tokenizer,
        model.max_length,
        graphdef,
        jax.tree.unflatten(jax.tree.structure(abstract), params),
    )


def _builder(config: ModelConfig, vocab_size: int, head: Head | None) -> Any:
    def build(key: jax.Array) -> tuple[nnx.GraphDef, nnx.State]:
        if head:
            return heads.build(config, vocab_size, head, key)
        encoder = Bert(config, vocab_size, nnx.Rngs(params=key), has_pooler=False)
        return nnx.split(encoder)

    return build


def _named(abstract: Any, head: Head | None) -> list[tuple[str, Any]]:
    """Returns the parameters with their names in a model with a head."""
    prefix = "" if head else "bert."
    leaves, _ = jax.tree_util.tree_flatten_with_path(abstract)
    return [(prefix + path_name(path), leaf) for path, leaf in leaves]


def model_config(values: dict[str, Any], path: Path) -> ModelConfig:
    """Builds and validates the sizes of a model.

    Args:
      values: the values of the model's config, by config.model's keys.
      path: the file of the config, for error messages.

    Raises:
      ConfigError: if a size is missing, invalid, or does not divide over the mesh.
    """
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    config: ModelConfig = config_lib.build(
        ModelConfig, {name: values[name] for name in names}, str(path)
    )
    if config.hidden_size % config.num_attention_heads:
        raise ConfigError(
            f"{path} has hidden_size={config.hidden_size}, which is not a multiple of"
            f" num_attention_heads={config.num_attention_heads}; fetch it again"
        )
    mesh_lib.check_model(config, jax.sharding.get_mesh(), f"{path}: ")
    return config


def check_finite(arrays: dict[str, np.ndarray], directory: Path) -> None:
    """Raises ConfigError if a weight is NaN or infinite."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ConfigError(
                f"{directory} has NaN or infinity in {name}; use an older checkpoint"
                " of it"
            )


def _check_shapes(source: Source, shapes: dict[str, tuple[int, ...]]) -> None:
    missing = [name for name in shapes if name not in source.shapes]
    if missing:
        raise ConfigError(
            f"{source.directory} lacks {len(missing)} of the model's tensors, for"
            f" example {missing[0]}; fetch it again"
        )
    for name, shape in source.shapes.items():
        if shape != shapes[name]:
            raise ConfigError(
                f"{source.directory} has {name} as {list(shape)}, but its config.json"
                f" implies {list(shapes[name])}; fetch it again"
            )


def tokenizer_of(
    source: Source, vocab_size: int, lowercase: bool | None
) -> tokenizers.Tokenizer:
    """Builds the tokenizer of a model.

    Args:
      source: the opened model.
      vocab_size: the number of rows of the model's table of tokens.
      lowercase: whether the tokenizer lower-cases text; None if unknown.

    Raises:
      ConfigError: if there is no tokenizer file, `lowercase` is None, or the tokenizer
        has more tokens than the model.
    """
    directory, path = source.directory, source.vocabulary_path
    if source.vocabulary is None:
        raise ConfigError(f"{directory} has no tokenizer; copy its vocab.txt there")
    if lowercase is None:
        raise ConfigError(
            f"{directory} does not record whether its text was lower-cased; write"
            ' {"do_lower_case": true} or false into its tokenizer_config.json'
        )
    kind: TokenizerKind = "wordpiece"
    if path.name != tokenizers.WordPiece.FILE:
        kind = sentencepiece.kind(source.vocabulary, str(path))
    config = TokenizerConfig(
        kind=kind,
        vocab_file=str(path),
        vocab_size=vocab_size,
        lowercase=lowercase,
    )
    tokenizer = tokenizers.parse(source.vocabulary, config, str(path))
    if len(tokenizer.vocab) > vocab_size:
        raise ConfigError(
            f"{path} has {len(tokenizer.vocab)} tokens, more than the {vocab_size} of"
            " config.json; fetch it again"
        )
    return tokenizer
