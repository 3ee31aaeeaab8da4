"""Writes a model in the format of `transformers`.

Files: config.json, model.safetensors (encoder and heads), tokenizer.json,
tokenizer_config.json, and vocab.txt or sentencepiece.model.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import safetensors
import safetensors.numpy
import tokenizers as tokenizers_lib

from bert_jax.config import ExperimentConfig, ModelConfig
from bert_jax.data.tokenizers import base, library, tokenizers
from bert_jax.interop import sentence_transformers, weight_names
from bert_jax.interop.weight_names import HUGGINGFACE
from bert_jax.model.heads import Head
from bert_jax.small_files import write_json

WEIGHTS = "model.safetensors"


def write(
    directory: Path,
    params: Any,
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
    dtype: str = "float32",
) -> None:
    """Writes a pretrained model into an existing directory."""
    max_length = config.model.max_position_embeddings
    write_model(directory, params, config.model, None, tokenizer, max_length, dtype)


def write_model(
    directory: Path,
    params: Any,
    config: ModelConfig,
    head: Head | None,
    tokenizer: tokenizers.Tokenizer,
    max_length: int,
    dtype: str = "float32",
) -> None:
    """Writes a model with a task head, or without one, into an existing directory.

    A dual encoder also gets the files with which sentence-transformers pools.
    """
    safetensors.numpy.save_file(
        weight_names.rename(params, HUGGINGFACE, jnp.dtype(dtype)),
        directory / WEIGHTS,
        # transformers before version 5 rejects a file without it.
        metadata={"format": "pt"},
    )
    # safetensors makes the file readable by its owner only.
    (directory / WEIGHTS).chmod(0o644)
    write_json(directory / "config.json", model_config(config, head, tokenizer, dtype))
    build_tokenizer(tokenizer).save(str(directory / "tokenizer.json"))
    write_json(
        directory / "tokenizer_config.json", tokenizer_config(max_length, tokenizer)
    )
    tokenizer.save(directory)
    if head and head.type.is_dual_encoder:
        sentence_transformers.write(directory, config.hidden_size, max_length)


def model_config(
    model: ModelConfig, head: Head | None, tokenizer: tokenizers.Tokenizer, dtype: str
) -> dict[str, Any]:
    """Returns the contents of config.json."""
    pretraining = {"architectures": ["BertForPreTraining"]}
    return (head_keys(head) if head else pretraining) | {
        "model_type": "bert",
        "vocab_size": len(tokenizer.vocab),
        **dataclasses.asdict(model),
        "pad_token_id": tokenizer.id(base.PAD),
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
    }


def head_keys(head: Head) -> dict[str, Any]:
    """Returns the entries of config.json that describe a head."""
    found: dict[str, Any] = {
        "architectures": [head.type.architecture],
        "classifier_dropout": head.dropout_prob,
    }
    if head.type.problem_type:
        found["problem_type"] = head.type.problem_type
    if head.labels:
        found["id2label"] = {str(i): label for i, label in enumerate(head.labels)}
        found["label2id"] = {label: i for i, label in enumerate(head.labels)}
    return found


def tokenizer_config(
    max_length: int, tokenizer: tokenizers.Tokenizer
) -> dict[str, Any]:
    """Returns the contents of tokenizer_config.json."""
    special = [token for token in tokenizers.SPECIAL_TOKENS if token in tokenizer.vocab]
    return {
        # Not BertTokenizer, which ignores the limit of 200 characters for a word in
        # tokenizer.json and builds a tokenizer with 100 (transformers 5.23).
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "do_lower_case": tokenizer.lowercase,
        "model_max_length": max_length,
    } | {f"{token[1:-1].lower()}_token": token for token in special}


def build_tokenizer(tokenizer: tokenizers.Tokenizer) -> tokenizers_lib.Tokenizer:
    """Returns the tokenizer of tokenizer.json, which adds [CLS] and [SEP].

    Unlike in training, a literal "[MASK]" in a text becomes the mask token: users of
    the exported model write masks that way.
    """
    built = tokenizer.huggingface()
    library.add_special_tokens(built)
    return built
