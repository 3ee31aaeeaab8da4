"""A checkpoint of google-research/bert (TensorFlow 1), written and read.

Files: bert_config.json, vocab.txt and bert_model.ckpt, which is .index and
.data-00000-of-00001, with the variable names of run_pretraining.py, as in the released
models. Nothing of a graph is read or written, and no code of a checkpoint is run.
"""

import glob
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bert_jax.config import ExperimentConfig
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, DamagedError
from bert_jax.interop import files, tf1_variables, weight_names
from bert_jax.interop.files import Source
from bert_jax.interop.weight_names import GOOGLE
from bert_jax.lazy_tensorflow import tf
from bert_jax.storage import read_json, write_json

CONFIG = "bert_config.json"
CHECKPOINT = "bert_model.ckpt"
# What a bert_config.json means that leaves a key out: modeling.py, BertConfig.
MEANT = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "type_vocab_size": 16,
    "max_position_embeddings": 512,
}
DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
LAYER_NORM_EPS = 1e-12  # of tf.contrib.layers.layer_norm; no key of the config


def write(
    directory: Path,
    params: Any,
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
    dtype: str = "float32",
) -> None:
    """Writes the files into an existing directory, variables in the dtype.

    Raises:
      ConfigError: when the released code has no such model.
    """
    for key, value, only in (
        ("tokenizer.kind", config.tokenizer.kind, "wordpiece"),
        ("model.layer_norm_eps", config.model.layer_norm_eps, LAYER_NORM_EPS),
    ):
        if value != only:
            raise ConfigError(
                f"--format=google: config.{key}={value!r}, but google-research/bert has"
                f" {only!r} alone; use --format=huggingface"
            )
    tensors = weight_names.rename(params, GOOGLE, jnp.dtype(dtype))
    tf.raw_ops.SaveV2(
        prefix=str(directory / CHECKPOINT),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(array) for array in tensors.values()],
    )
    write_json(directory / CONFIG, model_config(config, tokenizer))
    tokenizer.save(directory)


def model_config(
    config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
) -> dict[str, Any]:
    """Returns the contents of bert_config.json."""
    model = config.model
    return {
        "attention_probs_dropout_prob": model.attention_probs_dropout_prob,
        # The only name modeling.py knows for either form; it computes the tanh form.
        "hidden_act": "gelu",
        "hidden_dropout_prob": model.hidden_dropout_prob,
        "hidden_size": model.hidden_size,
        "initializer_range": model.initializer_range,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.max_position_embeddings,
        "num_attention_heads": model.num_attention_heads,
        "num_hidden_layers": model.num_hidden_layers,
        "type_vocab_size": model.type_vocab_size,
        "vocab_size": len(tokenizer.vocab),
    }


def is_source(path: Path) -> bool:
    """Returns whether a path is the directory or the prefix of such a checkpoint."""
    if path.is_dir():
        return (path / CONFIG).exists() and any(path.glob("*.index"))
    return path.suffix == ".index" or _index(path).exists()


def open_source(path: Path, wanted: Iterable[str]) -> Source:
    """Opens a TF1 checkpoint of BERT with bert_config.json beside it.

    Args:
      path: the directory, or the checkpoint's path without .index where the directory
        has several.
      wanted: our names of the parameters.

    Raises:
      ConfigError: when it is none, a file is damaged, or one leads elsewhere.
    """
    prefix = _prefix(path)
    directory = prefix.parent
    config = config_values(path)
    shapes = _shapes(prefix)
    stored, unused = weight_names.find(shapes, wanted, GOOGLE)
    vocabulary = directory / tokenizers.WordPiece.FILE
    # Its "gelu" is either form; see the note.
    sizes = {key: value for key, value in config.items() if key != "hidden_act"}
    return Source(
        directory=directory,
        sizes=sizes,
        lowercase=None,
        shapes={
            ours: GOOGLE.lay_out_shape(ours, shapes[name])
            for ours, name in stored.items()
        },
        unused=unused,
        vocabulary=(
            files.read(directory, vocabulary.name)
            if os.path.lexists(vocabulary)
            else None
        ),
        vocabulary_path=vocabulary,
        read=lambda: {
            ours: GOOGLE.lay_out(ours, array)
            for ours, array in _read(prefix, stored).items()
        },
        notes=(
            "Google's hidden_act 'gelu' is gelu_new since 2019-02-07 and was gelu"
            " before, and whether its text was lower-cased is not written there;"
            " config.model.hidden_act and config.tokenizer.lowercase are taken",
        ),
    )


def config_values(path: Path) -> dict[str, Any]:
    """Returns what bert_config.json says or means, under config.model's names.

    Raises:
      ConfigError: when there is none, or its activation is another than "gelu", which
        stands for either form.
    """
    config_path = files.file(_prefix(path).parent, CONFIG)
    config = MEANT | read_json(config_path)
    if config["hidden_act"] != "gelu":
        raise ConfigError(
            f"{config_path} has hidden_act={config['hidden_act']!r}; this is for 'gelu'"
            " alone"
        )
    return config | {"layer_norm_eps": LAYER_NORM_EPS}


def _index(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".index")


def _prefix(path: Path) -> Path:
    """Returns the checkpoint's path without .index, its files all in its directory."""
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) != 1:
            names = ", ".join(p.name for p in found[:3])
            raise ConfigError(
                f"{path} has several checkpoints: {names}; give one's path without"
                " .index"
            )
        path = found[0]
    prefix = path.with_suffix("") if path.suffix == ".index" else path
    files.file(prefix.parent, _index(prefix).name)
    for data in _data_files(prefix):
        files.refuse_link_outside(data, prefix.parent)
    return prefix


def _data_files(prefix: Path) -> list[Path]:
    return sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"))


def _shapes(prefix: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all variables that are weights, by name."""
    try:
        variables = tf1_variables.list_variables(str(prefix))
    except tf1_variables.UnreadableError as error:
        raise _damaged(prefix, error) from None
    if not _data_files(prefix):
        raise DamagedError(f"{prefix}.data-00000-of-00001 is missing; fetch it again")
    available = sum(path.stat().st_size for path in _data_files(prefix))
    shapes = {}
    for name, (shape, dtype) in variables.items():
        if _is_of_the_optimizer(name):
            continue
        if dtype not in DTYPES:
            raise ConfigError(
                f"{prefix} has {name!r} as {dtype}; save it as one of"
                f" {', '.join(DTYPES)}"
            )
        if math.prod(shape) * DTYPES[dtype] > available:
            raise _damaged(prefix, f"{name!r} is larger than its data files")
        shapes[name] = shape
    return shapes


def _is_of_the_optimizer(name: str) -> bool:
    return name == "global_step" or name.endswith(("/adam_m", "/adam_v"))


def _read(prefix: Path, names: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns variables as float32 arrays; names are {key: variable}."""
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        return {
            key: np.asarray(reader.get_tensor(name)).astype(np.float32)
            for key, name in names.items()
        }
    # The reader turns some of TensorFlow's errors into Python's.
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise _damaged(prefix, error) from None


def _damaged(prefix: Path, reason: Exception | str) -> DamagedError:
    return DamagedError(f"{prefix} is damaged ({reason}); fetch it again")
