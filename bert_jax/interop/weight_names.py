"""Table of parameter names: ours, Hugging Face's and Google's.

Models are read and written with the same table. Our kernels are [input, output]; each
`Naming` lists the kernels that are [output, input]. All other parameters have the same
shape in all three.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from bert_jax.model import parameters

# Our name -> the name in Hugging Face's BertFor...; {i} is the layer. Each entry is a
# Linear or LayerNorm with two parameters. The decoder's weight is the word embedding,
# so it has no entry of its own.
LAYER = "bert.encoder.layer.{i}"
MODULES = {
    "bert.embeddings.norm": "bert.embeddings.LayerNorm",
    "bert.layers.{i}.attention.query": f"{LAYER}.attention.self.query",
    "bert.layers.{i}.attention.key": f"{LAYER}.attention.self.key",
    "bert.layers.{i}.attention.value": f"{LAYER}.attention.self.value",
    "bert.layers.{i}.attention.output": f"{LAYER}.attention.output.dense",
    "bert.layers.{i}.attention_norm": f"{LAYER}.attention.output.LayerNorm",
    "bert.layers.{i}.intermediate": f"{LAYER}.intermediate.dense",
    "bert.layers.{i}.output": f"{LAYER}.output.dense",
    "bert.layers.{i}.output_norm": f"{LAYER}.output.LayerNorm",
    "bert.pooler": "bert.pooler.dense",
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
}
TENSORS = {
    "bert.embeddings.word": "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position": "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.segment": "bert.embeddings.token_type_embeddings.weight",
    "decoder_bias": "cls.predictions.bias",
    "next_sentence.kernel": "cls.seq_relationship.weight",
    "next_sentence.bias": "cls.seq_relationship.bias",
    # Task heads, see model/heads.py.
    "classifier.kernel": "classifier.weight",
    "classifier.bias": "classifier.bias",
    "qa_outputs.kernel": "qa_outputs.weight",
    "qa_outputs.bias": "qa_outputs.bias",
}
# Our name -> Google's name in run_pretraining.py; the others have slashes instead.
GOOGLE_TENSORS = {
    "bert.embeddings.word": "bert/embeddings/word_embeddings",
    "bert.embeddings.position": "bert/embeddings/position_embeddings",
    "bert.embeddings.segment": "bert/embeddings/token_type_embeddings",
    "decoder_bias": "cls/predictions/output_bias",
    "next_sentence.kernel": "cls/seq_relationship/output_weights",
    "next_sentence.bias": "cls/seq_relationship/output_bias",
}


@dataclasses.dataclass(frozen=True)
class Naming:
    """The names and layouts of parameters in one format."""

    names: dict[str, str]  # our name -> the name in the format; {i} is the layer
    # matches our names of kernels that the format stores as [output, input]
    transposed: re.Pattern[str]

    @functools.cached_property
    def _our_names(self) -> dict[str, str]:
        return {theirs: ours for ours, theirs in self.names.items()}

    def name(self, ours: str) -> str:
        """Returns the name in this format of a parameter that is in the tables."""
        key, layer = _without_layer(ours)
        return self.names[key].replace("{i}", layer)

    def our_names(self, names: Iterable[str]) -> dict[str, str]:
        """Returns {our name: name} of the tensors that are in the tables."""
        generic = {name: _without_layer(name) for name in names}
        return {
            self._our_names[key].replace("{i}", layer): name
            for name, (key, layer) in generic.items()
            if key in self._our_names
        }

    def lay_out(self, ours: str, array: np.ndarray) -> np.ndarray:
        """Converts one of our parameters between our layout and that of the format."""
        return array.T if self.transposed.fullmatch(ours) else array

    def lay_out_shape(self, ours: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of an array after `lay_out`."""
        return shape[::-1] if self.transposed.fullmatch(ours) else shape


def _without_layer(name: str) -> tuple[str, str]:
    """Returns a name with {i} for the number of its layer, and the number."""
    number = re.search(r"\d+", name)
    layer = number.group() if number else ""
    return (name.replace(layer, "{i}") if layer else name), layer


def _naming(
    tensors: dict[str, str],
    separator: str,
    linear: dict[str, str],
    layer_norm: dict[str, str],
    transposed: str,
) -> Naming:
    """Builds a naming of MODULES; a Linear and a LayerNorm name their parameters."""
    names = dict(tensors)
    for ours, theirs in MODULES.items():
        if separator == "/":
            theirs = theirs.replace(".", "/").replace("/layer/", "/layer_")
        words = layer_norm if ours.endswith("norm") else linear
        names |= {f"{ours}.{x}": f"{theirs}{separator}{y}" for x, y in words.items()}
    return Naming(names, re.compile(transposed))


HUGGINGFACE = _naming(
    TENSORS,
    ".",
    {"kernel": "weight", "bias": "bias"},
    {"scale": "weight", "bias": "bias"},
    r".*\.kernel",
)
# The names in our own checkpoints.
OURS = Naming({ours: ours for ours in HUGGINGFACE.names}, re.compile("(?!)"))
GOOGLE = _naming(
    GOOGLE_TENSORS,
    "/",
    {"kernel": "kernel", "bias": "bias"},
    {"scale": "gamma", "bias": "beta"},
    r"next_sentence\.kernel",
)


def huggingface_prefixes(names: Iterable[str]) -> list[str]:
    """Returns the prefix of each encoder's names: "", or for example "module.".

    Wrappers of a model, for example for distributed training, add one.
    """
    encoder = re.compile(r"((?:.*?\.)??)(?:bert\.)?embeddings\.word_embeddings\.weight")
    return sorted({match[1] for n in names if (match := encoder.fullmatch(n))})


def current_huggingface_name(name: str) -> str:
    """Returns the current Hugging Face name of a tensor in an older checkpoint.

    Checkpoints converted from TensorFlow name LayerNorm's parameters gamma and beta;
    those of an encoder without heads lack the leading "bert.".
    """
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    is_encoder = name.startswith(("embeddings.", "encoder.", "pooler."))
    return f"bert.{name}" if is_encoder else name


def rename(
    params: Any, naming: Naming, dtype: np.typing.DTypeLike = np.float32
) -> dict[str, np.ndarray]:
    """Returns the parameters as arrays of `dtype`, by the names of `naming`."""
    return {
        naming.name(ours): np.ascontiguousarray(naming.lay_out(ours, array), dtype)
        for ours, array in parameters.by_name(params).items()
    }
