"""Structures of encoders, of their masked-LM head and of task heads.

A structure has a model's parameters as abstract arrays, with the names that they have
in a model with a head. No weights are read or initialized.
"""

from typing import Any

import jax
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model import heads, parameters
from bert_jax.model.bert import Bert, BertForPreTraining
from bert_jax.model.heads import Head

PREFIX = "bert."  # starts the encoder's parameter names in a model with a head


def shapes(
    config: ModelConfig, vocab_size: int, head: Head | None, has_masked_lm: bool
) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter by name, with the pooler of an encoder.

    Args:
      vocab_size: the number of rows of the table of tokens.
      head: the task head; None for an encoder.
      has_masked_lm: whether an encoder has its masked-LM head; it then has no pooler.
    """
    _, params = build(config, vocab_size, head, has_masked_lm, has_pooler=True)
    return {name: leaf.shape for name, leaf in named(params, head, has_masked_lm)}


def build(
    config: ModelConfig,
    vocab_size: int,
    head: Head | None,
    has_masked_lm: bool,
    *,
    has_pooler: bool,
) -> tuple[nnx.GraphDef, Any]:
    """Returns a model's graphdef and its parameters as abstract arrays.

    Args:
      config, vocab_size, head, has_masked_lm: see `shapes`.
      has_pooler: whether an encoder without heads has its pooler.
    """

    def initialized(key: jax.Array) -> tuple[nnx.GraphDef, nnx.State]:
        if head:
            return heads.build(config, vocab_size, head, key)
        rngs = nnx.Rngs(params=key)
        if not has_masked_lm:
            return nnx.split(Bert(config, vocab_size, rngs, has_pooler=has_pooler))
        model = BertForPreTraining(config, vocab_size, rngs)
        del model.next_sentence, model.bert.pooler  # `masked_lm` reads neither
        return nnx.split(model)

    return parameters.structure(initialized)


def named(params: Any, head: Head | None, has_masked_lm: bool) -> list[tuple[str, Any]]:
    """Returns the parameters with their names in a model with a head."""
    prefix = "" if head or has_masked_lm else PREFIX
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return [(prefix + parameters.path_name(path), leaf) for path, leaf in leaves]
