"""What config.json of Hugging Face says of a tuned model's head, both ways."""

from pathlib import Path
from typing import Any

from bert_jax.errors import ConfigError
from bert_jax.interop import sentence_transformers
from bert_jax.model.heads import Head

# What a config.json means that leaves a key out: transformers' BertConfig.
MEANT = {
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

SEQUENCE = "BertForSequenceClassification"
ENCODER = "BertModel"  # which is a dual encoder with sentence_transformers.py's files
# Kind -> architecture, and what else tells the kinds of one architecture apart.
KINDS: dict[str, tuple[str, str | None]] = {
    "classification": (SEQUENCE, "single_label_classification"),
    "regression": (SEQUENCE, "regression"),
    "multi_label": (SEQUENCE, "multi_label_classification"),
    "tagging": ("BertForTokenClassification", None),
    "question_answering": ("BertForQuestionAnswering", None),
    "multiple_choice": ("BertForMultipleChoice", None),
    "similarity": (ENCODER, None),
}
PRETRAINED = (["BertForPreTraining"], ["BertForMaskedLM"], [ENCODER])
UNLABELLED = ("question_answering", "multiple_choice", "similarity")
# What a config.json without id2label means: transformers' PretrainedConfig.
MEANT_LABELS = {"0": "LABEL_0", "1": "LABEL_1"}


def keys(head: Head) -> dict[str, Any]:
    """Returns the keys of config.json that are the head's."""
    architecture, problem_type = KINDS[head.kind]
    found: dict[str, Any] = {
        "architectures": [architecture],
        "classifier_dropout": head.dropout_prob,
    }
    if problem_type:
        found["problem_type"] = problem_type
    if head.labels:
        found["id2label"] = {str(i): label for i, label in enumerate(head.labels)}
        found["label2id"] = {label: i for i, label in enumerate(head.labels)}
    return found


def parse(config: dict[str, Any], path: Path) -> Head:
    """Returns the head that a config.json tells of; `path` names it in messages.

    Raises:
      ConfigError: when it is of a model without one of our heads, or damaged.
    """
    labels = _labels(config.get("id2label", MEANT_LABELS), path)
    problem_type = config.get("problem_type")
    architectures = config.get("architectures")
    if architectures == [SEQUENCE] and problem_type is None:
        # As transformers decides when it is first given labels.
        problem_type = KINDS["regression" if len(labels) == 1 else "classification"][1]
    is_encoder = architectures == [ENCODER]
    if is_encoder and not sentence_transformers.is_dual_encoder(path.parent):
        architectures = None
    for kind, (architecture, type_) in KINDS.items():
        if architectures == [architecture] and type_ in (None, problem_type):
            has_labels = kind not in UNLABELLED
            return Head(kind, labels if has_labels else (), _dropout(config, path))
    if config.get("architectures") in PRETRAINED:
        raise ConfigError(
            f"{path.parent} has no head of a task; python -m bert_jax.finetune tunes it"
            " on one, and writes WORKDIR/model to give here"
        )
    known = ", ".join(dict.fromkeys(architecture for architecture, _ in KINDS.values()))
    raise ConfigError(
        f"{path} has architectures={config.get('architectures')!r} and"
        f" problem_type={problem_type!r}, which is no tuned BERT; there are {known},"
        " the last with sentence-transformers' mean of tokens"
    )


def _labels(id2label: Any, path: Path) -> tuple[str, ...]:
    size = len(id2label) if isinstance(id2label, dict) else 0
    numbers = [str(i) for i in range(size)]
    if not numbers or sorted(id2label) != sorted(numbers):
        raise ConfigError(f"{path}: id2label does not name the classes 0, 1, 2, ...")
    return tuple(str(id2label[number]) for number in numbers)


def _dropout(config: dict[str, Any], path: Path) -> float:
    rate = config.get("classifier_dropout")
    if rate is None:
        rate = (MEANT | config)["hidden_dropout_prob"]
    if not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ConfigError(f"{path} has a dropout of {rate!r}; it must be in [0, 1)")
    return float(rate)
