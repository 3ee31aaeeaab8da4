"""The one table of parameter names: ours and Hugging Face's.

Our kernels are [input, output] and theirs [output, input]; everything else has the same
shape in both.
"""

import re
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
