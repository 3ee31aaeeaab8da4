"""A trained model with nothing known of it but its own directory.

That is one of `export` or of any Hugging Face BERT with safetensors. initialize.py is
for a run that says itself what the model must be.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax import config as config_lib
from bert_jax.config import ModelConfig, TokenizerConfig
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
from bert_jax.model.bert import ACTIVATIONS, Bert
from bert_jax.model.heads import Head
from bert_jax.model.parameters import path_name


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model, laid out on the mesh.

    Attributes:
      config: its sizes.
      head: what it was tuned for; None for an encoder alone, without pooler.
      tokenizer: its own.
      max_length: tokens of a text that it was made for.
      graphdef: of `Bert`, or of the head's module.
      params: float32.
    """

    config: ModelConfig
    head: Head | None
    tokenizer: tokenizers.Tokenizer
    max_length: int
    graphdef: nnx.GraphDef
    params: Any


@dataclasses.dataclass(frozen=True)
class Opened:
    """A model that was read, on no device yet.

    Attributes:
      config, head, tokenizer: as of `Trained`.
      vocab_size: rows of its table of tokens.
      max_length: tokens of a text that it was made for.
      arrays: float32, by our names.
    """

    config: ModelConfig
    head: Head | None
    tokenizer: tokenizers.Tokenizer
    vocab_size: int
    max_length: int
    arrays: dict[str, np.ndarray]


def read_encoder(path: str) -> Trained:
    """Reads the encoder of a model, whatever its heads.

    Raises:
      ConfigError: when there is none, a file is damaged, or it does not divide over
        the mesh.
    """
    return lay_out(_open(_directory(path, "--model", is_encoder=True), None))


def read_tuned(path: str) -> Trained:
    """Reads a tuned model with its head.

    Raises:
      ConfigError: as `read_encoder`.
    """
    return lay_out(open_tuned(path, "--model"))


def open_tuned(path: str, given_as: str) -> Opened:
    """Reads a tuned model with its head, without laying it out.

    Args:
      path: of its directory.
      given_as: the flag or key that named it, for messages.

    Raises:
      ConfigError: as `read_encoder`.
    """
    directory = _directory(path, given_as)
    values = huggingface_read.config_values(directory)
    return _open(directory, huggingface_config.parse(values, directory / "config.json"))


def _directory(path: str, given_as: str, *, is_encoder: bool = False) -> Path:
    try:
        directory = Path(path).expanduser().absolute()
    except RuntimeError:  # ~nobody
        raise ConfigError(f"{given_as}={path} is no path; give a directory") from None
    if (directory / "checkpoints").is_dir():
        raise ConfigError(
            f"{given_as}={path} is the workdir of a run; write its model with python -m"
            f" bert_jax.export --workdir={path} --output=DIR, and give DIR"
        )
    if not (directory / "config.json").is_file():
        if (directory / "model" / "config.json").is_file():
            raise ConfigError(
                f"{given_as}={path} has no config.json; give {path}/model"
            )
        problem = "has no config.json" if directory.is_dir() else "is not a directory"
        made_by = "export" if is_encoder else "finetune (WORKDIR/model)"
        raise ConfigError(
            f"{given_as}={path} {problem}; give a directory of python -m"
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
    """Returns the model with its parameters on the mesh."""
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
    """Returns the parameters by the names that they have in a model with a head."""
    prefix = "" if head else "bert."
    leaves, _ = jax.tree_util.tree_flatten_with_path(abstract)
    return [(prefix + path_name(path), leaf) for path, leaf in leaves]


def model_config(values: dict[str, Any], path: Path) -> ModelConfig:
    """Returns the sizes in a config of a model; `path` names it in messages.

    Raises:
      ConfigError: when one is missing, cannot be, or does not divide over the mesh.
    """
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    config: ModelConfig = config_lib.build(
        ModelConfig, {name: values[name] for name in names}, str(path)
    )
    whole = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    whole += ("intermediate_size", "max_position_embeddings", "type_vocab_size")
    for name in whole:
        if getattr(config, name) < 1:
            raise ConfigError(f"{path} has {name}={values[name]}; fetch it again")
    if config.hidden_size % config.num_attention_heads:
        raise ConfigError(
            f"{path} has hidden_size={config.hidden_size}, which"
            f" num_attention_heads={config.num_attention_heads} does not divide"
        )
    if config.hidden_act not in ACTIVATIONS:
        raise ConfigError(
            f"{path} has hidden_act={config.hidden_act!r}; there are"
            f" {', '.join(ACTIVATIONS)}"
        )
    mesh_lib.check_model(config, jax.sharding.get_mesh(), f"{path}: ")
    return config


def check_finite(arrays: dict[str, np.ndarray], directory: Path) -> None:
    """Raises ConfigError when weights are NaN or infinite."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ConfigError(
                f"{directory} has NaN or infinity in {name}; take an older checkpoint"
                " of it"
            )


def _check_shapes(source: Source, shapes: dict[str, tuple[int, ...]]) -> None:
    missing = [name for name in shapes if name not in source.shapes]
    if missing:
        raise ConfigError(
            f"{source.directory} lacks {len(missing)} of the model's tensors, as"
            f" {missing[0]}"
        )
    for name, shape in source.shapes.items():
        if shape != shapes[name]:
            raise ConfigError(
                f"{source.directory} has {name} as {list(shape)}, but its config.json"
                f" means {list(shapes[name])}; fetch it again"
            )


def tokenizer_of(
    source: Source, vocab_size: int, lowercase: bool | None
) -> tokenizers.Tokenizer:
    """Returns a model's own tokenizer.

    Raises:
      ConfigError: when it has none, does not say how it treats case and `lowercase` is
        None, or has more tokens than the model.
    """
    directory, path = source.directory, source.vocabulary_path
    if source.vocabulary is None:
        raise ConfigError(f"{directory} has no tokenizer; copy its vocab.txt there")
    if lowercase is None:
        raise ConfigError(
            f"{directory} does not say whether its text was lower-cased; write"
            ' {"do_lower_case": true} or false into its tokenizer_config.json'
        )
    kind = "wordpiece"
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
