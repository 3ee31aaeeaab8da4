"""Reads a model with the sizes of its own config, and places it on the mesh.

`read_encoder` reads any supported format, `read_tuned` a fine-tuned model with its
head. init_from.py reads weights for the config of a run.
"""

import dataclasses
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from bert_jax import config as config_lib
from bert_jax.config import ModelConfig
from bert_jax.data.tokenizers import base, tokenizers
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.errors import ConfigError
from bert_jax.interop import huggingface_read, sentence_transformers
from bert_jax.interop.files import Source
from bert_jax.loading import source as source_lib
from bert_jax.model import heads, parameters
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.heads import Head, HeadType

# The meaning of bert_config.json's "gelu" since 2019-02-07. The two forms differ by at
# most 5e-4.
GOOGLE_HIDDEN_ACT = "gelu_new"
POOLER = "bert.pooler."  # optional: encoders published without heads may lack it
BIAS = "decoder_bias"  # of the masked-LM head


@dataclasses.dataclass(frozen=True)
class HostModel:
    """A trained model in host memory."""

    config: ModelConfig  # the sizes of the model
    head: Head | None  # the task head; None for an encoder
    tokenizer: tokenizers.Tokenizer
    max_length: int  # the maximum number of tokens in a row
    # float32 parameters by their names in a model with a head
    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...]  # a line for each part that is missing or not used
    prompt: str = ""  # what precedes every text of a dual encoder


class PlacedModel(NamedTuple):
    """The sizes, the structure and the float32 parameters of a model on the mesh."""

    config: ModelConfig
    graphdef: nnx.GraphDef
    params: Any


def read_encoder(
    path: str,
    lowercase: bool | None = None,
    given_as: str = "--model",
    *,
    has_masked_lm: bool = False,
) -> HostModel:
    """Reads the encoder of a model in any supported format; its heads are ignored.

    Padding rows of the table of tokens are dropped. `lowercase` is for models that do
    not record whether their text was lower-cased. Errors name `given_as`, the flag, key
    or argument with the path.
    """
    directory = source_lib.model_path(path, given_as)
    source = source_lib.open_source(directory, f"{given_as}={path}")
    config = model_config(source.sizes, source.directory)
    if has_masked_lm and BIAS not in source.shapes:
        raise ConfigError(
            f"{given_as}={path} has no masked-LM head; use a pretrained model that is"
            " not fine-tuned, for example a directory of python -m bert_jax.export"
        )
    # If there is no table of tokens, `check_tensors` raises the error.
    vocab_size, *_ = source.shapes.get(source_lib.WORD) or (1,)
    _, like = _structure(config, vocab_size, None, has_masked_lm, has_pooler=True)
    wanted = parameters.shapes(like)
    source_lib.check_tensors(source, wanted, (POOLER,))
    tokenizer = _tokenizer_of(source, vocab_size, lowercase, has_flag=True)
    if has_masked_lm and base.MASK not in tokenizer.vocab:
        raise ConfigError(
            f"the tokenizer of {source.directory} has no {base.MASK}, which a masked-LM"
            " head needs; use another model"
        )
    arrays = source_lib.read_finite(source, wanted)
    for name in {source_lib.WORD, BIAS} & arrays.keys():
        arrays[name] = arrays[name][: len(tokenizer.vocab)]
    notes = _notes(source, wanted, tokenizer, vocab_size)
    max_length = _max_length(config, directory)
    if not has_masked_lm and not any(x.startswith(POOLER) for x in arrays):
        notes += ("the model has no pooler; heads that use one train it from scratch",)
    return HostModel(config, None, tokenizer, max_length, arrays, notes)


def read_tuned(
    path: str, types: Sequence[HeadType], given_as: str = "--model"
) -> HostModel:
    """Reads a model with its head, of `finetune` or in Hugging Face's format."""
    directory = source_lib.model_path(path, given_as)
    _check_is_tuned(path, given_as, directory)
    source = source_lib.open_source(directory, f"{given_as}={path}")
    file, sizes = directory / "config.json", source.sizes
    head = huggingface_read.parse_head(sizes, file, types)
    config = model_config(sizes, file)
    vocab_size = sizes.get("vocab_size")
    vocab_size = config_lib.build(int, vocab_size, f"{directory}: vocab_size")
    _, like = _structure(config, vocab_size, head, False, has_pooler=True)
    wanted = parameters.shapes(like)
    source_lib.check_tensors(source, wanted)
    arrays = source_lib.read_finite(source, wanted)
    tokenizer = _tokenizer_of(source, vocab_size, None, has_flag=False)
    notes = _notes(source, wanted, tokenizer, vocab_size)
    prompt = (
        sentence_transformers.prompt(directory) if head.type.is_dual_encoder else ""
    )
    max_length = _max_length(config, directory)
    return HostModel(config, head, tokenizer, max_length, arrays, notes, prompt)


def _tokenizer_of(
    source: Source, vocab_size: int, given: bool | None, *, has_flag: bool
) -> tokenizers.Tokenizer:
    """Builds a model's tokenizer; `given` decides the case if it is unrecorded."""
    directory, opened = source.directory, source.tokenizer
    if opened is None:
        raise ConfigError(f"{directory} has no tokenizer; copy its vocab.txt there")
    if given is not None and opened.lowercase not in (None, given):
        raise ConfigError(
            f"--lowercase={str(given).lower()}, but {directory} has"
            f" {str(opened.lowercase).lower()}; remove the flag"
        )
    lowercase = opened.lowercase if given is None else given
    if lowercase is None:
        flag = "add --lowercase=true or --lowercase=false, or " if has_flag else ""
        raise ConfigError(
            f"{directory} does not record whether its text was lower-cased; {flag}write"
            ' {"do_lower_case": true} or false into its tokenizer_config.json'
        )
    tokenizer, path = opened.build(lowercase), opened.path
    base.check_special_tokens(tokenizer.vocab, str(path), base.TEXT_TOKENS)
    if len(tokenizer.vocab) > vocab_size:
        raise ConfigError(
            f"{path} has {len(tokenizer.vocab)} tokens, more than the {vocab_size} of"
            " config.json; download it again"
        )
    return tokenizer


def _notes(
    source: Source,
    wanted: Collection[str],
    tokenizer: tokenizers.Tokenizer,
    vocab_size: int,
) -> tuple[str, ...]:
    """Returns a line for each part of a model that is not used."""
    notes = []
    # Each model is read without some of the pretraining heads.
    of_heads = (name for name in source.names if name.startswith(source_lib.HEADS))
    if unused := source.unused({*wanted, *of_heads}):
        notes.append(f"unused tensors: {source_lib.some(unused)}")
    if len(tokenizer.vocab) < vocab_size:
        notes.append(
            f"the tokenizer of {source.directory} has {len(tokenizer.vocab):,} tokens,"
            f" and the table of tokens {vocab_size:,} rows; the last ones are not used"
        )
    return tuple(notes)


def place(model: HostModel) -> PlacedModel:
    """Places a model's parameters on the mesh, without the pooler of an encoder."""
    size, has_masked_lm = len(model.arrays[source_lib.WORD]), BIAS in model.arrays
    graphdef, abstract = _structure(
        model.config, size, model.head, has_masked_lm, has_pooler=False
    )
    like = sharding.on_mesh(abstract, jax.sharding.get_mesh())
    return PlacedModel(model.config, graphdef, parameters.place(like, model.arrays))


def _structure(
    config: ModelConfig,
    vocab_size: int,
    head: Head | None,
    has_masked_lm: bool,
    *,
    has_pooler: bool,
) -> tuple[nnx.GraphDef, Any]:
    """Returns a model's graphdef and its parameters as abstract arrays."""

    def initialized(key: jax.Array) -> tuple[nnx.GraphDef, nnx.State]:
        if head:
            return heads.build(config, vocab_size, head, key)
        model = BertForPreTraining(config, vocab_size, nnx.Rngs(params=key))
        del model.next_sentence
        if has_masked_lm or not has_pooler:
            del model.bert.pooler
        if not has_masked_lm:
            del model.transform, model.transform_norm, model.decoder_bias
        return nnx.split(model)

    return parameters.structure(initialized)


def first_layers(encoder: HostModel, num_layers: int) -> HostModel:
    """Returns an encoder of the first `num_layers` layers; 0 keeps all of them."""
    most = encoder.config.num_hidden_layers
    if num_layers > most:
        raise ConfigError(
            f"config.num_layers={num_layers}, but the model has {most}; set it to"
            f" {most} or less"
        )
    if num_layers in (0, most):
        return encoder
    config = dataclasses.replace(encoder.config, num_hidden_layers=num_layers)
    dropped = tuple(f"bert.layers.{i}." for i in range(num_layers, most))
    arrays = {
        name: array
        for name, array in encoder.arrays.items()
        if not name.startswith(dropped)
    }
    return dataclasses.replace(encoder, config=config, arrays=arrays)


def _check_is_tuned(path: str, given_as: str, directory: Path) -> None:
    """Raises ConfigError if a directory cannot contain a fine-tuned model."""
    if (directory / "checkpoints").is_dir() or source_lib.is_workdir(directory):
        raise ConfigError(
            f"{given_as}={path} is the workdir of a run; use a model written by: python"
            " -m bert_jax.finetune --config=configs/finetune/own.py"
            f" {shlex.quote(f'--model={path}')}"
        )
    if not (directory / "config.json").is_file():
        uses = "a directory of python -m bert_jax.finetune (WORKDIR/model) or of a"
        raise source_lib.not_a_model(
            f"{given_as}={path}", directory, f"{uses} Hugging Face BERT"
        )


def _max_length(config: ModelConfig, directory: Path) -> int:
    limits = (
        config.max_position_embeddings,
        huggingface_read.max_length(directory),
        sentence_transformers.sequence_length(directory),
    )
    return min(limit for limit in limits if limit is not None)


def model_config(values: dict[str, Any], path: Path) -> ModelConfig:
    """Builds and validates the sizes of a model from values by config.model's keys."""
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    values = {"hidden_act": GOOGLE_HIDDEN_ACT} | values
    config: ModelConfig = config_lib.build(
        ModelConfig, {name: values[name] for name in names}, str(path)
    )
    if config.hidden_size % config.num_attention_heads:
        raise ConfigError(
            f"{path} has hidden_size={config.hidden_size}, which is not a multiple of"
            f" num_attention_heads={config.num_attention_heads}; download it again"
        )
    mesh_lib.check_model(config, jax.sharding.get_mesh(), f"{path}: ")
    return config


def check_pairs(model: ModelConfig, given: str) -> None:
    """Raises ConfigError if a model cannot tell the two texts of a pair apart."""
    if model.type_vocab_size < 2:
        raise ConfigError(
            f"{given}: the model has type_vocab_size={model.type_vocab_size}, so it"
            " reads single texts only; use a model with type_vocab_size=2 for pairs"
        )
