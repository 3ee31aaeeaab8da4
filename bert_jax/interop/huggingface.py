"""A directory that `transformers` loads, written and read: weights, config, tokenizer.

Files: config.json, model.safetensors (encoder, pooler, masked-LM and next-sentence
heads), tokenizer.json, tokenizer_config.json, and vocab.txt or sentencepiece.model.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import tokenizers as tokenizers_lib

from bert_jax.config import ConfigError, ExperimentConfig
from bert_jax.data import tokenizers
from bert_jax.interop import weight_names

WEIGHTS = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def write(
    directory: Path,
    params: Any,
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
) -> None:
    """Writes the five files into an existing directory."""
    safetensors.numpy.save_file(
        weight_names.to_huggingface(params),
        directory / WEIGHTS,
        # Readers before transformers 5 refuse a file that does not say so.
        metadata={"format": "pt"},
    )
    (directory / WEIGHTS).chmod(0o644)  # safetensors keeps it to its owner
    _write_json(directory / "config.json", model_config(config, tokenizer))
    build_tokenizer(tokenizer).save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json", tokenizer_config(config, tokenizer)
    )
    tokenizer.save(directory)


def model_config(
    config: ExperimentConfig, tokenizer: tokenizers.Tokenizer
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
        "torch_dtype": "float32",
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


def read_weights(directory: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of model.safetensors, or of the files its index names.

    They are under their names of today, see `weight_names.canonical`, in the dtypes
    that they are stored in.

    Raises:
      ConfigError: when there are none, a file is damaged, or one leads elsewhere.
    """
    tensors = {}
    for path in _weight_files(directory):
        try:
            with safetensors.safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118, it is no dict
                    tensors[weight_names.canonical(name)] = file.get_tensor(name)
        except safetensors.SafetensorError as error:
            raise ConfigError(f"{path} is damaged ({error}); fetch it again") from None
    for name in weight_names.REPEATED:
        tensors.pop(name, None)
    return tensors


def _weight_files(directory: Path) -> list[Path]:
    single, index = directory / WEIGHTS, directory / f"{WEIGHTS}.index.json"
    if single.exists():
        return [_inside(directory, WEIGHTS)]
    if index.exists():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ConfigError(f"{index} has no weight_map; fetch it again")
        return [_inside(directory, str(name)) for name in sorted(set(names.values()))]
    pickles = sorted(p.name for p in directory.iterdir() if p.suffix in PICKLES)
    if pickles:
        raise ConfigError(
            f"{directory / pickles[0]} is a pickle, which can run code when it is"
            " opened; if you trust it, convert it where torch is installed: python -c"
            f" \"import transformers as t; t.AutoModelForPreTraining.from_pretrained('"
            f"{directory}').save_pretrained('NEW_DIRECTORY')\""
        )
    raise ConfigError(f"{directory} has no {WEIGHTS}")


def _inside(directory: Path, name: str) -> Path:
    # Only the name is not trusted: links of the user's own are how caches are built.
    path = directory / name
    if Path(name).name != name:
        raise ConfigError(f"{path} leads out of its directory; copy the file there")
    if not path.is_file():
        raise ConfigError(f"{path} is missing; fetch it again")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
      ConfigError: when there is none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object; fetch it again")
    return value


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
