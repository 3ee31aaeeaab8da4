"""The one table of parameter names, ours and Hugging Face's, used in both directions.

Our kernels are [input, output] and theirs [output, input]; everything else has the same
shape in both.
"""

import re
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from bert_jax.model import path_name

# Ours -> Hugging Face's BertForPreTraining; {i} is the layer. Linear and LayerNorm
# stand for their two parameters. The tied decoder weight has no entry of its own.
MODULES = {
    "bert.embeddings.norm": "bert.embeddings.LayerNorm",
    "bert.layers.{i}.attention.query": "bert.encoder.layer.{i}.attention.self.query",
    "bert.layers.{i}.attention.key": "bert.encoder.layer.{i}.attention.self.key",
    "bert.layers.{i}.attention.value": "bert.encoder.layer.{i}.attention.self.value",
    "bert.layers.{i}.attention.output": (
        "bert.encoder.layer.{i}.attention.output.dense"
    ),
    "bert.layers.{i}.attention_norm": (
        "bert.encoder.layer.{i}.attention.output.LayerNorm"
    ),
    "bert.layers.{i}.intermediate": "bert.encoder.layer.{i}.intermediate.dense",
    "bert.layers.{i}.output": "bert.encoder.layer.{i}.output.dense",
    "bert.layers.{i}.output_norm": "bert.encoder.layer.{i}.output.LayerNorm",
    "bert.pooler": "bert.pooler.dense",
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "next_sentence": "cls.seq_relationship",
}
TENSORS = {
    "bert.embeddings.word": "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position": "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.segment": "bert.embeddings.token_type_embeddings.weight",
    "decoder_bias": "cls.predictions.bias",
}
PARAMETERS = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def huggingface_name(name: str) -> str:
    """Returns Hugging Face's name of one of our parameters.

    Raises:
      KeyError: when the parameter is not in the table.
    """
    if name in TENSORS:
        return TENSORS[name]
    module, _, parameter = name.rpartition(".")
    layer = re.search(r"\.layers\.(\d+)\.", module)
    key = module.replace(layer.group(), ".layers.{i}.") if layer else module
    theirs = MODULES[key].replace("{i}", layer.group(1) if layer else "")
    return f"{theirs}.{PARAMETERS[parameter]}"


def to_huggingface(params: Any) -> dict[str, np.ndarray]:
    """Returns the parameters as float32 arrays under Hugging Face's names."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    tensors = {}
    for path, leaf in leaves:
        name = path_name(path)
        array = np.asarray(jax.device_get(leaf), np.float32)
        if name.endswith(".kernel"):
            array = array.T
        tensors[huggingface_name(name)] = np.ascontiguousarray(array)
    return tensors


def from_huggingface(
    tensors: dict[str, np.ndarray], names: Iterable[str]
) -> dict[str, np.ndarray]:
    """Returns what there is of the parameters `names`, under our names and float32.

    Args:
      tensors: under the names that `canonical` gives.
      names: ours.
    """
    found = {}
    for name in names:
        array = tensors.get(huggingface_name(name))
        if array is None:
            continue
        array = array.astype(np.float32)
        found[name] = array.T if name.endswith(".kernel") else array
    return found


def canonical(name: str) -> str:
    """Returns Hugging Face's present name of a tensor in a checkpoint of any age.

    Checkpoints converted from TensorFlow call LayerNorm's two gamma and beta; those of
    an encoder without heads leave out the leading "bert.".
    """
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    is_encoder = name.startswith(("embeddings.", "encoder.", "pooler."))
    return f"bert.{name}" if is_encoder else name


# Stored by some versions beside what they repeat: the numbers 0, 1, 2, ..., the word
# embedding and cls.predictions.bias.
REPEATED = (
    "bert.embeddings.position_ids",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
)
