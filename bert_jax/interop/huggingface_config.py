"""Converts between task heads and Hugging Face's config.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import ConfigError
from bert_jax.interop import sentence_transformers
from bert_jax.model import heads
from bert_jax.model.heads import Head, HeadType

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
    "model_type": "bert",
    "position_embedding_type": "absolute",
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


def keys(head: Head) -> dict[str, Any]:
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


def parse(config: dict[str, Any], path: Path, types: Sequence[HeadType]) -> Head:
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


def check_fixed(
    values: Mapping[str, Any], fixed: Mapping[str, Any], path: Path
) -> None:
    """Raises ConfigError if a key has another value than the supported one."""
    for key, only in fixed.items():
        value = values.get(key, only)
        if isinstance(value, dict) and "content" in value:  # an added token
            value = value["content"]
        if value != only and (value or only):
            raise ConfigError(
                f"{path} has {key}={values[key]!r}; only {only!r} is supported"
            )
