"""A directory that `transformers` loads, written and read: weights, config, tokenizer.

Files: config.json, model.safetensors (encoder, pooler, masked-LM and next-sentence
heads), tokenizer.json, tokenizer_config.json, and vocab.txt or sentencepiece.model.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
import tokenizers as tokenizers_lib

from bert_jax.config import ConfigError, ExperimentConfig
from bert_jax.data import tokenizers
from bert_jax.interop import model_directory, weight_names
from bert_jax.interop.model_directory import Source, read_json, write_json
from bert_jax.interop.weight_names import HUGGINGFACE

WEIGHTS = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
FLOATS = ("F64", "F32", "F16", "BF16")  # quantised weights mean other numbers
# What a config.json means that leaves a key out: transformers' BertConfig.
DEFAULT_SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
}
# Its names of functions that differ in rounding alone.
SAME_ACTIVATION = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}
# Stored by some versions beside what they repeat: the numbers 0, 1, 2, ... and the word
# embedding.
REPEATED = ("bert.embeddings.position_ids", "cls.predictions.decoder.weight")


def write(
    directory: Path,
    params: Any,
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
    dtype: str = "float32",
) -> None:
    """Writes the five files into an existing directory, weights in the dtype."""
    safetensors.numpy.save_file(
        weight_names.rename(params, HUGGINGFACE, jnp.dtype(dtype)),
        directory / WEIGHTS,
        # Readers before transformers 5 refuse a file that does not say so.
        metadata={"format": "pt"},
    )
    (directory / WEIGHTS).chmod(0o644)  # safetensors keeps it to its owner
    write_json(directory / "config.json", model_config(config, tokenizer, dtype))
    build_tokenizer(tokenizer).save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config(config, tokenizer))
    tokenizer.save(directory)


def model_config(
    config: ExperimentConfig, tokenizer: tokenizers.Tokenizer, dtype: str
) -> dict[str, Any]:
    """Returns the contents of config.json."""
    model = config.model
    return {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "vocab_size": len(tokenizer.vocab),
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "hidden_act": model.hidden_act,
        "hidden_dropout_prob": model.hidden_dropout_prob,
        "attention_probs_dropout_prob": model.attention_probs_dropout_prob,
        "max_position_embeddings": model.max_position_embeddings,
        "type_vocab_size": model.type_vocab_size,
        "initializer_range": model.initializer_range,
        "layer_norm_eps": model.layer_norm_eps,
        "pad_token_id": tokenizer.id(tokenizers.PAD),
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
    }


def tokenizer_config(
    config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> dict[str, Any]:
    """Returns the contents of tokenizer_config.json."""
    return {
        # Not BertTokenizer: that one ignores tokenizer.json's 200 characters a word and
        # builds its own with 100 (transformers 5.23).
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "do_lower_case": tokenizer.lowercase,
        "model_max_length": config.model.max_position_embeddings,
        "pad_token": tokenizers.PAD,
        "unk_token": tokenizers.UNK,
        "cls_token": tokenizers.CLS,
        "sep_token": tokenizers.SEP,
        "mask_token": tokenizers.MASK,
    }


def build_tokenizer(tokenizer: tokenizers.Tokenizer) -> tokenizers_lib.Tokenizer:
    """Returns the pipeline of tokenizer.json: special tokens and [CLS] A [SEP] B [SEP].

    Unlike in training, a literal "[MASK]" in a text becomes the mask: that is how
    users of the exported model write one.
    """
    built = tokenizer.huggingface()
    built.add_special_tokens(list(tokenizers.SPECIAL_TOKENS))
    cls, sep = tokenizers.CLS, tokenizers.SEP
    built.post_processor = tokenizers_lib.processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, tokenizer.id(cls)), (sep, tokenizer.id(sep))],
    )
    return built


def open_source(directory: Path, wanted: Iterable[str], tokenizer_file: str) -> Source:
    """Opens the directory of a BERT with model.safetensors, whole or in parts.

    Args:
      directory: with a config.json.
      wanted: our names of the parameters.
      tokenizer_file: the name of a tokenizer's file, of the kind that the run has.

    Raises:
      ConfigError: when it is none, a file is damaged, or one leads elsewhere.
    """
    config_path = model_directory.file(directory, "config.json")
    config = read_json(config_path)
    only = {
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }
    for key, value in only.items():
        if config.get(key, value) != value:
            raise ConfigError(
                f"{config_path} has {key}={config[key]!r}; this is for {value!r} alone"
            )
    sizes = {key: config.get(key, value) for key, value in DEFAULT_SIZES.items()}
    activation = sizes["hidden_act"]
    if isinstance(activation, str):
        sizes["hidden_act"] = SAME_ACTIVATION.get(activation, activation)
    tensors = _Tensors(directory)
    stored, unused = weight_names.find(tensors.shapes, wanted, HUGGINGFACE)

    def lay_out(name: str, array: np.ndarray) -> np.ndarray:
        return HUGGINGFACE.lay_out(name, array.astype(np.float32))

    return Source(
        directory=directory,
        sizes=sizes,
        lowercase=_lowercase(directory),
        shapes={
            ours: HUGGINGFACE.lay_out_shape(ours, tensors.shapes[name])
            for ours, name in stored.items()
        },
        unused=unused,
        vocabulary=_vocabulary(directory, tokenizer_file),
        vocabulary_path=directory / tokenizer_file,
        read=lambda: {
            ours: lay_out(ours, tensors.read(name)) for ours, name in stored.items()
        },
    )


class _Tensors:
    """The tensors of model.safetensors, or of the files that its index names.

    Attributes:
      shapes: by the names of today, without what only repeats another.
    """

    def __init__(self, directory: Path):
        self._stored: dict[str, tuple[Path, str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in _weight_files(directory):
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118, it is no dict
                    today = weight_names.huggingface_name_today(name)
                    if today in REPEATED or (today in self.shapes and today != name):
                        continue
                    self._stored[today] = path, name
                    self.shapes[today] = tuple(file.get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        path, stored_name = self._stored[name]
        with _opened(path) as file:
            dtype = file.get_slice(stored_name).get_dtype()
            if dtype not in FLOATS:
                raise ConfigError(
                    f"{path} has {stored_name} as {dtype}; save it as one of"
                    f" {', '.join(FLOATS)}"
                )
            return file.get_tensor(stored_name)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, framework="np") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise ConfigError(f"{path} is damaged ({error}); fetch it again") from None


def _weight_files(directory: Path) -> list[Path]:
    single, index = directory / WEIGHTS, directory / f"{WEIGHTS}.index.json"
    if single.exists():
        return [model_directory.file(directory, WEIGHTS)]
    if index.exists():
        parts = read_json(model_directory.file(directory, index.name)).get("weight_map")
        names = list(parts.values()) if isinstance(parts, dict) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{index} has no weight_map of files; fetch it again")
        return [model_directory.file(directory, name) for name in sorted(set(names))]
    pickles = sorted(p.name for p in directory.iterdir() if p.suffix in PICKLES)
    if pickles:
        raise ConfigError(
            f"{directory / pickles[0]} is a pickle, which can run code when it is"
            " opened; if you trust it, convert it where torch is installed: python -c"
            f" \"import transformers as t; t.AutoModelForPreTraining.from_pretrained('"
            f"{directory}').save_pretrained('NEW_DIRECTORY')\""
        )
    raise ConfigError(f"{directory} has no {WEIGHTS}")


def _lowercase(directory: Path) -> bool | None:
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return None
    value = read_json(model_directory.file(directory, path.name)).get("do_lower_case")
    return value if isinstance(value, bool) else None


def _vocabulary(directory: Path, tokenizer_file: str) -> bytes | None:
    if (directory / tokenizer_file).exists():
        return model_directory.file(directory, tokenizer_file).read_bytes()
    # All that transformers 5 writes of a WordPiece.
    path = directory / "tokenizer.json"
    if tokenizer_file != tokenizers.WordPiece.FILE or not path.exists():
        return None
    model = read_json(model_directory.file(directory, path.name)).get("model")
    ids = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(ids, dict) or not all(type(id_) is int for id_ in ids.values()):
        return None
    pieces = sorted((id_, piece) for piece, id_ in ids.items())
    return "".join(f"{piece}\n" for _, piece in pieces).encode()
