"""Reads and writes TensorFlow 1 checkpoints of google-research/bert.

Files: bert_config.json, vocab.txt, bert_model.ckpt.index and
bert_model.ckpt.data-00000-of-00001, with the variable names of run_pretraining.py, as
in the released models. No graph is read or written, and no code of a checkpoint is run.
"""

import contextlib
import dataclasses
import glob
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bert_jax.config import ExperimentConfig
from bert_jax.data.tokenizers import tokenizers, wordpiece
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.interop import files, weight_names
from bert_jax.interop.files import Source, SourceTokenizer
from bert_jax.interop.huggingface_read import DEFAULTS
from bert_jax.interop.weight_names import GOOGLE
from bert_jax.lazy_tensorflow import tf
from bert_jax.small_files import read_json, write_json

CONFIG = "bert_config.json"
CHECKPOINT = "bert_model.ckpt"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # a variable of TF2 checkpoints
DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
LAYER_NORM_EPS = 1e-12  # of tf.contrib.layers.layer_norm; bert_config.json has no key


def write(
    directory: Path,
    params: Any,
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
    dtype: str = "float32",
) -> None:
    """Writes a checkpoint into an existing directory, with variables of `dtype`."""
    for key, value, only in (
        ("tokenizer.kind", config.tokenizer.kind, "wordpiece"),
        ("model.layer_norm_eps", config.model.layer_norm_eps, LAYER_NORM_EPS),
    ):
        if value != only:
            raise ConfigError(
                f"--format=google: config.{key}={value!r}, but google-research/bert"
                f" supports only {only!r}; use --format=huggingface"
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
    values = dataclasses.asdict(config.model) | {
        # modeling.py has one name for both forms of GELU, and computes the tanh form.
        "hidden_act": "gelu",
        "vocab_size": len(tokenizer.vocab),
    }
    del values["layer_norm_eps"]
    return dict(sorted(values.items()))


def is_source(path: Path) -> bool:
    """Returns whether a path is the directory or prefix of a TF1 checkpoint of BERT."""
    if path.is_dir():
        return (path / CONFIG).exists() and any(path.glob("*.index"))
    return path.suffix == ".index" or Path(f"{path}.index").exists()


def open_source(path: Path) -> Source:
    """Opens a TF1 checkpoint by its directory, or by its path without .index."""
    prefix = _prefix(path)
    directory = prefix.parent

    def load(names: list[str]) -> list[np.ndarray]:
        with _open(prefix) as reader:
            return [np.asarray(reader.get_tensor(name)) for name in names]

    return Source(
        directory=directory,
        sizes=_sizes(directory),
        tokenizer=_open_tokenizer(directory / tokenizers.WordPiece.FILE),
        naming=GOOGLE,
        tensors=_shapes(prefix),
        load=load,
        notes=(
            "Google's hidden_act 'gelu' means gelu_new since 2019-02-07 and meant gelu"
            " before, and the checkpoint does not record whether its text was"
            " lower-cased; using config.model.hidden_act and"
            " config.tokenizer.lowercase",
        ),
    )


def _open_tokenizer(path: Path) -> SourceTokenizer | None:
    if not os.path.lexists(path):
        return None
    content = files.read(path.parent, path.name)

    def build(lowercase: bool) -> tokenizers.WordPiece:
        return tokenizers.WordPiece(wordpiece.tokens_in(content, str(path)), lowercase)

    return SourceTokenizer(path, None, build, content)


def _sizes(directory: Path) -> dict[str, Any]:
    """Returns the values of bert_config.json and defaults, by config.model's names.

    The activation is not among them: its "gelu" is ambiguous, see `notes`.
    """
    config_path = files.file(directory, CONFIG)
    config = DEFAULTS | {"type_vocab_size": 16}  # of modeling.py
    config |= read_json(config_path)
    if (activation := config.pop("hidden_act")) != "gelu":
        raise ConfigError(
            f"{config_path} has hidden_act={activation!r}; only 'gelu' is supported"
        )
    return config | {"layer_norm_eps": LAYER_NORM_EPS}


def _prefix(path: Path) -> Path:
    """Returns the checkpoint's path without .index, and checks its files' links."""
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) != 1:
            names = ", ".join(p.name for p in found[:3])
            raise ConfigError(
                f"{path} has several checkpoints: {names}; use the path of one, without"
                " .index"
            )
        path = found[0]
    prefix = path.with_suffix("") if path.suffix == ".index" else path
    files.file(prefix.parent, f"{prefix.name}.index")
    for data in _data_files(prefix):
        files.refuse_link_outside(data, prefix.parent)
    return prefix


def _data_files(prefix: Path) -> list[Path]:
    return sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"))


def _shapes(prefix: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all variables except the optimizer's, by name."""
    with _open(prefix) as reader:
        variables = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
    if not _data_files(prefix):
        raise CorruptError(
            f"{prefix}.data-00000-of-00001 is missing; download it again"
        )
    if OBJECT_GRAPH in variables:
        raise ConfigError(
            f"{prefix} is a TF2 checkpoint; convert it where TensorFlow and"
            f" transformers==4.46.3 are installed: {_convert_tf2(prefix)}; then copy"
            " its vocab.txt there"
        )
    available = sum(path.stat().st_size for path in _data_files(prefix))
    shapes = {}
    for name, shape in variables.items():
        is_counter = dtypes[name].is_integer and not name.startswith(("bert/", "cls/"))
        if is_counter or name.endswith(("/adam_m", "/adam_v")):
            continue
        dtype = dtypes[name].name
        if dtype not in DTYPES:
            raise ConfigError(
                f"{prefix} stores {name!r} as {dtype}; save it as one of"
                f" {', '.join(DTYPES)}"
            )
        if math.prod(shape) * DTYPES[dtype] > available:
            raise _corrupt(prefix, f"{name!r} is larger than its data files")
        shapes[name] = tuple(shape)
    return shapes


def _convert_tf2(prefix: Path) -> str:
    """Returns the command that converts a TF2 checkpoint to Hugging Face's format."""
    module = "transformers.models.bert.convert_bert_original_tf2_checkpoint_to_pytorch"
    return (
        f'python -c "import transformers as t; from {module} import'
        " load_tf2_weights_in_bert as load;"
        f" c = t.BertConfig.from_json_file('{prefix.parent / CONFIG}');"
        f" load(t.BertModel(c), '{prefix}', c).save_pretrained('NEW_DIRECTORY')\""
    )


@contextlib.contextmanager
def _open(prefix: Path) -> Iterator[Any]:
    try:
        yield tf.train.load_checkpoint(str(prefix))
    # The reader converts some of TensorFlow's errors to Python exceptions. A forged
    # index may still abort the process.
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError, TypeError) as why:
        raise _corrupt(prefix, why) from None


def _corrupt(prefix: Path, reason: Exception | str) -> CorruptError:
    return CorruptError(f"{prefix} is corrupt ({reason}); download it again")
