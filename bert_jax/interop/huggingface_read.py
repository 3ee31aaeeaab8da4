"""Reads the weights and sizes of a BERT in Hugging Face's format.

The files are not trusted: no pickle is opened, no link that points outside is followed,
and the files are checked against each other before weights are read.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop import files as files_lib
from bert_jax.interop import huggingface_tokenizer, sentence_transformers, weight_names
from bert_jax.interop.files import Source
from bert_jax.interop.huggingface_write import WEIGHTS
from bert_jax.interop.weight_names import HUGGINGFACE
from bert_jax.model import heads
from bert_jax.model.heads import Head, HeadType
from bert_jax.small_files import read_json

# Defaults of transformers' BertConfig for keys missing from config.json.
DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
}
# Keys with one supported value. docs/export.md lists the effects of all keys.
FIXED = {
    "add_cross_attention": False,
    "auto_map": None,  # code in the repository
    "is_decoder": False,
    "is_encoder_decoder": False,
    "model_type": "bert",
    "per_layer_config": None,
    "position_embedding_type": "absolute",
    "pruned_heads": None,
    "quantization_config": None,
}

PRETRAINED = (["BertForPreTraining"], ["BertForMaskedLM"], [heads.ENCODER])
# Default of transformers' PretrainedConfig for a config.json without id2label.
DEFAULT_NUM_LABELS = 2
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
FLOATS = ("F64", "F32", "F16", "BF16")  # quantized weights are not supported
# Names of transformers -> ours, from which they differ in rounding only.
SAME_ACTIVATION = {"gelu_python": "gelu"} | dict.fromkeys(
    ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"), "gelu_new"
)
DECODER = "cls.predictions.bias"  # a parameter of the masked-LM head
# Tensors that some versions store as copies -> the original.
REPEATED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": DECODER,
}
# Buffers of transformers: the numbers 0, 1, 2, ..., and zeros.
IGNORED_TENSORS = tuple(f"bert.embeddings.{x}_ids" for x in ("position", "token_type"))
CASE_UNKNOWN = (
    "its files do not record whether its text was lower-cased; using"
    " config.tokenizer.lowercase"
)


def open_source(directory: Path) -> Source:
    """Opens a BERT whose weights are model.safetensors or an index of several files."""
    path = files_lib.file(directory, "config.json")
    config = DEFAULTS | read_json(path)
    files_lib.check_fixed(config, FIXED, path)
    activation = config["hidden_act"]
    if isinstance(activation, str):
        config["hidden_act"] = SAME_ACTIVATION.get(activation, activation)
    tensors = _Tensors(directory)
    tokenizer = huggingface_tokenizer.open_tokenizer(directory, config)
    is_recorded = tokenizer is not None and tokenizer.lowercase is not None

    def load(names: list[str]) -> list[np.ndarray]:
        if DECODER in names:
            if not config["tie_word_embeddings"]:
                raise ConfigError(
                    f"{path} has tie_word_embeddings=False; only True is supported for"
                    " the masked-LM head"
                )
            tensors.check_repeated()
        return list(map(tensors.read, names))

    return Source(
        directory=directory,
        sizes=config,
        tokenizer=tokenizer,
        naming=HUGGINGFACE,
        tensors=tensors.shapes,
        load=load,
        notes=() if is_recorded else (CASE_UNKNOWN,),
    )


def max_length(directory: Path) -> int | None:
    """Returns the maximum number of tokens in a row in tokenizer_config.json."""
    settings = files_lib.optional_json(directory, huggingface_tokenizer.SETTINGS)
    length = settings.get("model_max_length", settings.get("max_len"))
    # transformers writes 1e30 if there is no limit.
    return length if type(length) is int and length > 0 else None


def parse_head(config: dict[str, Any], path: Path, types: Sequence[HeadType]) -> Head:
    """Returns the head that a config.json and the files beside it describe."""
    labels = _labels(config, path)
    # transformers infers a missing problem type in the same way.
    inferred = "regression" if len(labels) == 1 else "single_label_classification"
    problem_type = config.get("problem_type") or inferred
    architectures = config.get("architectures")
    is_encoder = architectures == [heads.ENCODER]
    if is_encoder and not sentence_transformers.is_dual_encoder(path.parent):
        architectures = None
    for type_ in types:
        is_type = type_.problem_type in (None, problem_type)
        if architectures == [type_.architecture] and is_type:
            return Head(
                type_, labels if type_.has_labels else (), _dropout(config, path)
            )
    if config.get("architectures") in PRETRAINED:
        raise ConfigError(
            f"{path.parent} has no task head; fine-tune it with python -m"
            " bert_jax.finetune, and use the resulting WORKDIR/model"
        )
    known = ", ".join(dict.fromkeys(type_.architecture for type_ in types))
    raise ConfigError(
        f"{path} has architectures={config.get('architectures')!r} and"
        f" problem_type={config.get('problem_type')!r}, which is not a supported"
        " fine-tuned BERT;"
        f" supported are {known}, the last with sentence-transformers' mean pooling"
    )


def _labels(config: dict[str, Any], path: Path) -> tuple[str, ...]:
    id2label = config.get("id2label")
    if id2label is None:
        size = config.get("num_labels", DEFAULT_NUM_LABELS)
        if type(size) is not int or not 0 < size < 2**20:
            raise ConfigError(f"{path} has num_labels={size!r}; download it again")
        return tuple(f"LABEL_{i}" for i in range(size))
    size = len(id2label) if isinstance(id2label, dict) else 0
    numbers = [str(i) for i in range(size)]
    if not numbers or sorted(id2label) != sorted(numbers):
        raise ConfigError(f"{path}: the keys of id2label are not 0, 1, 2, ...")
    return tuple(str(id2label[number]) for number in numbers)


def _dropout(config: dict[str, Any], path: Path) -> float:
    rate = config.get("classifier_dropout")
    if rate is None:
        rate = (DEFAULTS | config)["hidden_dropout_prob"]
    if not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ConfigError(f"{path} has a dropout of {rate!r}; it must be in [0, 1)")
    return float(rate)


@dataclasses.dataclass(frozen=True)
class _Tensor:
    path: Path
    name: str  # in the file
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> np.ndarray:
        with _open(self.path) as file:
            return file.get_tensor(self.name)


class _Tensors:
    """The tensors of model.safetensors, or of the files that its index names.

    Attributes:
      shapes: the shapes by current name, without tensors that repeat others.
    """

    def __init__(self, directory: Path):
        # More than one of a name is an error when it is read.
        self._found: dict[str, list[_Tensor]] = {}
        self._repeated: dict[str, list[_Tensor]] = {}
        every = _every_tensor(directory)
        prefixes = weight_names.huggingface_prefixes(t.name for t in every)
        if len(prefixes) > 1 and prefixes[0]:
            raise ConfigError(
                f"{directory} has the weights of several encoders, named"
                f" {', '.join(p + '*' for p in prefixes)}; keep those of one"
            )
        prefix = prefixes[0] if prefixes else ""
        for tensor in every:
            name = tensor.name.removeprefix(prefix)
            name = weight_names.current_huggingface_name(name)
            place = self._repeated if name in REPEATED else self._found
            if name not in IGNORED_TENSORS:
                place.setdefault(REPEATED.get(name, name), []).append(tensor)
        # Some models store the decoder's bias only under the name of the copy.
        for original in self._repeated.keys() - self._found.keys():
            self._found[original] = self._repeated.pop(original)
        self.shapes = {name: tensors[0].shape for name, tensors in self._found.items()}

    def read(self, name: str) -> np.ndarray:
        tensor, *others = self._found[name]
        if tensor.dtype not in FLOATS:
            raise ConfigError(
                f"{tensor.path} stores {tensor.name!r} as {tensor.dtype}; save it as"
                f" one of {', '.join(FLOATS)}"
            )
        if others:
            raise ConfigError(
                f"{tensor.path} repeats {others[0].name!r}; keep one of the two"
            )
        return tensor.read()

    def check_repeated(self) -> None:
        """Raises ConfigError if a tensor differs from the one that it should repeat."""
        for original, copies in self._repeated.items():
            for tensor in copies:
                if not np.array_equal(tensor.read(), self.read(original)):
                    raise ConfigError(
                        f"{tensor.path} has {tensor.name!r}, which differs from"
                        f" {original!r}; only models that tie the two are supported"
                    )


def _every_tensor(directory: Path) -> list[_Tensor]:
    found = []
    for path, names in _weight_files(directory).items():
        with _open(path) as file:
            stored = set(file.keys())
            for name in sorted(stored if names is None else names):
                if name not in stored:
                    raise CorruptError(f"{path} lacks {name!r}; download it again")
                tensor = file.get_slice(name)
                shape = tuple(tensor.get_shape())
                found.append(_Tensor(path, name, tensor.get_dtype(), shape))
    return found


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, framework="np") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise CorruptError(f"{path} is corrupt ({error}); download it again") from None


def _weight_files(directory: Path) -> dict[Path, list[str] | None]:
    """Returns the weight files and the tensors to read from each; None for all."""
    index = f"{WEIGHTS}.index.json"
    if os.path.lexists(directory / WEIGHTS):
        return {files_lib.file(directory, WEIGHTS): None}
    if os.path.lexists(directory / index):
        parts: Any = read_json(files_lib.file(directory, index))
        parts = parts.get("weight_map")
        files = list(parts.values()) if isinstance(parts, dict) else []
        if not files or not all(isinstance(name, str) for name in files):
            raise CorruptError(
                f"{directory / index} has no weight_map of files; download it again"
            )
        names: dict[str, list[str]] = {}
        for name, part in parts.items():
            names.setdefault(part, []).append(name)
        return {files_lib.file(directory, p): n for p, n in names.items()}
    pickles = sorted(p.name for p in directory.iterdir() if p.suffix in PICKLES)
    if pickles:
        raise ConfigError(
            f"{directory / pickles[0]} is a pickle, which can run code when it is"
            f" opened; {conversion(str(directory))}"
        )
    raise ConfigError(f"{directory} has no {WEIGHTS}; add it or use another model")


def conversion(model: str, revision: str = "main") -> str:
    """Returns the remedy for a model of pickles in a directory or on the Hub.

    The class is that of the saved model: another one would lack its heads, or have
    heads of random weights.
    """
    return (
        "if you trust it, convert it where torch is installed: python -c"
        f" \"import transformers as t; d, to = '{model}', 'NEW_DIRECTORY';"
        f" at = dict(revision='{revision}');"
        " names = t.AutoConfig.from_pretrained(d, **at).architectures or ['BertModel'];"
        " getattr(t, names[0]).from_pretrained(d, **at).save_pretrained(to);"
        ' t.AutoTokenizer.from_pretrained(d, **at).save_pretrained(to)"'
    )
