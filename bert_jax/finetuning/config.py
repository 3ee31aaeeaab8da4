"""Fine-tuning configuration: frozen dataclasses, built and validated once.

As in bert_jax/config.py, there are no defaults: every value is set in the config file.
config.task.kind determines which keys config.task has.
"""

import dataclasses
import json
from typing import Any

import ml_collections

from bert_jax import config as config_lib
from bert_jax.config import REMAT, MeshConfig
from bert_jax.errors import ConfigError
from bert_jax.finetuning import answer_units, predictions


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Specs of data sets, in the form of tables.py, conll.py or squad.py."""

    train: str
    dev: tuple[str, ...]  # the metric of the first one selects the best checkpoint
    test: tuple[str, ...]  # data sets without labels; may be empty
    header: tuple[str, ...]  # column names of a tsv or csv without a header line


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask:
    kind: str  # classification | regression | multi_label
    text: tuple[str, ...]  # one text column, or two for text pairs
    label: str  # label column
    labels: tuple[str, ...]  # class names; (): take them from the training set
    glue: tuple[str, ...]  # keys of predictions.GLUE_FILES, one for each of data.test
    index: str  # column of a test example's index in GLUE's file; "": row number
    threshold: float  # multi_label: minimum probability of a predicted class


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceTask:
    kind: str  # multiple_choice
    text: tuple[str, ...]  # context column; optionally a column prefixed to all choices
    choices: tuple[str, ...]  # one column per choice, or a single column of lists
    label: str  # column of the correct choice's index, from 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingTask:
    kind: str  # tagging
    words: str  # list-valued column of a table; ignored for conll: files
    tags: str  # the same, for tags
    labels: tuple[str, ...]  # BIO tags and O; (): take them from the training set


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionTask:
    kind: str  # question_answering
    stride: int  # tokens between the starts of windows; 0: see window_stride
    max_query_length: int  # maximum tokens of a question
    max_answer_length: int  # maximum tokens of an answer
    num_best: int  # answers to keep for each question
    null_threshold: float  # null odds above this value mean "no answer"
    answer_units: str  # words | characters, see answer_units.py

    def room(self, length: int) -> int:
        """Returns the number of paragraph tokens that fit beside the longest question.

        Args:
          length: tokens of a row, [CLS] question [SEP] window [SEP].
        """
        return length - 3 - self.max_query_length

    def window_stride(self, length: int) -> int:
        """Resolves the stride: 0 means half of the room, at most run_squad.py's 128."""
        return self.stride or max(1, min(128, self.room(length) // 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarityTask:
    kind: str  # similarity
    text: tuple[str, ...]  # the two text columns
    label: str  # column of the similarity score
    max_label: float  # score whose target cosine is 1; the target of score 0 is 0


Task = TextTask | ChoiceTask | TaggingTask | QuestionTask | SimilarityTask
TASKS: dict[str, type[Task]] = {
    "classification": TextTask,
    "regression": TextTask,
    "multi_label": TextTask,
    "tagging": TaggingTask,
    "question_answering": QuestionTask,
    "multiple_choice": ChoiceTask,
    "similarity": SimilarityTask,
}
METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "matthews", "f1", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "multi_label": ("micro_f1", "macro_f1"),
    "tagging": ("f1", "precision", "recall"),
    "question_answering": ("f1", "exact_match"),
    "multiple_choice": ("accuracy",),
    "similarity": ("spearman", "pearson"),
}
OPTIMIZERS = ("adamw_bert", "adamw")
COMPUTE_DTYPES = ("auto", "float32", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutConfig:
    hidden_prob: float  # in the encoder; config.model has this key in pretraining
    attention_prob: float
    head_prob: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    num_epochs: int
    global_batch_size: int  # examples or windows, over all devices and microbatches
    group_by_length: bool  # put rows of similar length into the same batch
    optimizer: str  # one of OPTIMIZERS, see optimizer.py
    learning_rate: float  # peak of linear warmup followed by linear decay to 0
    learning_rates: tuple[float, ...]  # peaks that a sweep tries
    warmup_fraction: float  # share of all steps
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    clip_norm: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig:
    teacher: str  # directory of a model fine-tuned on the task; "": no distillation
    label_weight: float  # weight of the loss on labels
    logits_weight: float  # weight of the distance between logits
    temperature: float  # divides both models' logits before they are compared
    states_weight: float  # weight of the distance between hidden states


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Settings:
    compute_dtype: str  # this key and those up to mesh: see config.ExperimentConfig
    accumulation_steps: int
    remat: str
    log_every_steps: int
    compilation_cache_dir: str
    mesh: MeshConfig
    eval_every_steps: int  # steps between dev evaluations; 0: once per epoch
    early_stop_evals: int  # stop after this many without improvement; 0: never stop
    max_bad_steps: int  # stop after this many consecutive non-finite steps
    data: DataConfig
    sequence_length: int
    num_layers: int  # keep this many of the encoder's first layers; 0: all
    dropout: DropoutConfig
    recipe: RecipeConfig
    distill: DistillConfig
    metric: str  # one of METRICS; selects the best checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(_Settings):
    task: Task

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def from_config_dict(config: ml_collections.ConfigDict) -> FinetuneConfig:
    """Builds and validates the config.

    Raises:
      ConfigError: if a key is missing, unknown or of the wrong type, or if values
        contradict each other.
    """
    values: Any = config  # pyright infers a tuple otherwise
    kind = values.task.get("kind") if "task" in values else None
    if kind is None and "phases" in values:
        raise ConfigError(
            "--config is a pretraining config for bert_jax.train; fine-tuning configs"
            " are in configs/finetune"
        )
    if kind not in TASKS:
        raise ConfigError(
            f"config.task.kind={kind!r} must be one of {', '.join(TASKS)}"
        )
    task = config_lib.build(TASKS[kind], values.task, "config.task")
    settings: Any = {key: values[key] for key in values if key != "task"}
    settings = config_lib.build(_Settings, settings, "config")
    finetune = FinetuneConfig(task=task, **vars(settings))
    _validate(finetune)
    return finetune


def _validate(config: FinetuneConfig) -> None:
    task, recipe = config.task, config.recipe
    metrics = METRICS[task.kind]
    _require(
        config.metric in metrics,
        "config.metric",
        config.metric,
        f"must be one of {', '.join(metrics)} for config.task.kind={task.kind}",
    )
    _require(
        bool(config.data.dev),
        "config.data.dev",
        config.data.dev,
        "must name at least one dev set",
    )
    for key, value, allowed in (
        ("config.recipe.optimizer", recipe.optimizer, OPTIMIZERS),
        ("config.compute_dtype", config.compute_dtype, COMPUTE_DTYPES),
        ("config.remat", config.remat, REMAT),
    ):
        _require(value in allowed, key, value, f"must be one of {', '.join(allowed)}")
    _validate_numbers(config)
    _validate_distill(config.distill)
    _validate_task(config)


def _validate_distill(distill: DistillConfig) -> None:
    if distill.teacher:
        _require(
            distill.logits_weight + distill.states_weight > 0,
            "config.distill.teacher",
            distill.teacher,
            "has no effect: set config.distill.logits_weight or"
            " config.distill.states_weight above 0",
        )
    else:
        weights = (distill.label_weight, distill.logits_weight, distill.states_weight)
        _require(
            weights == (1, 0, 0),
            "config.distill.teacher",
            "",
            "must name a fine-tuned model unless config.distill.label_weight=1,"
            " logits_weight=0 and states_weight=0",
        )


def _validate_task(config: FinetuneConfig) -> None:
    task = config.task
    if isinstance(task, TextTask):
        _require(
            len(task.glue) in (0, len(config.data.test))
            and set(task.glue) <= predictions.GLUE_FILES.keys(),
            "config.task.glue",
            task.glue,
            f"must be empty, or have one of {', '.join(predictions.GLUE_FILES)} for"
            " each of config.data.test",
        )
    if isinstance(task, TextTask | TaggingTask):
        _require(
            len(set(task.labels)) == len(task.labels),
            "config.task.labels",
            task.labels,
            "has a duplicate name",
        )
        _require(
            task.kind != "regression" or len(task.labels) <= 1,
            "config.task.labels",
            task.labels,
            "must have at most one name for a regression, whose head has one output",
        )
    if isinstance(task, TextTask | ChoiceTask):
        _require(
            len(task.text) in (1, 2),
            "config.task.text",
            task.text,
            "must name one or two columns",
        )
    if isinstance(task, ChoiceTask):
        _require(
            bool(task.choices),
            "config.task.choices",
            task.choices,
            "must name one column per choice, or a single column of lists",
        )
    if isinstance(task, SimilarityTask):
        _require(
            len(task.text) == 2, "config.task.text", task.text, "must name two columns"
        )
    if isinstance(task, QuestionTask):
        room = task.room(config.sequence_length)
        _require(
            room > 0,
            "config.task.max_query_length",
            task.max_query_length,
            "leaves no room for a paragraph in rows of config.sequence_length="
            f"{config.sequence_length}; lower it, or raise config.sequence_length",
        )
        _require(
            task.stride <= room,
            "config.task.stride",
            task.stride,
            "leaves gaps between windows: rows of config.sequence_length="
            f"{config.sequence_length} hold {room} tokens of the paragraph beside a"
            f" question of config.task.max_query_length={task.max_query_length}; set"
            " config.task.stride=0 for overlapping windows",
        )
        _require(
            task.answer_units in answer_units.UNITS,
            "config.task.answer_units",
            task.answer_units,
            f"must be one of {', '.join(answer_units.UNITS)}",
        )


def _validate_numbers(config: FinetuneConfig) -> None:
    recipe, dropout, task = config.recipe, config.dropout, config.task
    fractions = {
        "config.dropout.hidden_prob": dropout.hidden_prob,
        "config.dropout.attention_prob": dropout.attention_prob,
        "config.dropout.head_prob": dropout.head_prob,
        "config.recipe.warmup_fraction": recipe.warmup_fraction,
        "config.recipe.beta1": recipe.beta1,
        "config.recipe.beta2": recipe.beta2,
    }
    positive: dict[str, float] = {
        "config.recipe.num_epochs": recipe.num_epochs,
        "config.recipe.global_batch_size": recipe.global_batch_size,
        "config.recipe.learning_rate": recipe.learning_rate,
        "config.recipe.epsilon": recipe.epsilon,
        "config.recipe.clip_norm": recipe.clip_norm,
        "config.accumulation_steps": config.accumulation_steps,
        "config.log_every_steps": config.log_every_steps,
        "config.max_bad_steps": config.max_bad_steps,
        "config.distill.temperature": config.distill.temperature,
    }
    positive |= {"config.recipe.learning_rates": min(recipe.learning_rates, default=1)}
    if isinstance(task, TextTask):
        fractions["config.task.threshold"] = task.threshold
    if isinstance(task, SimilarityTask):
        positive["config.task.max_label"] = task.max_label
    if isinstance(task, QuestionTask):
        for name in ("max_query_length", "max_answer_length", "num_best"):
            positive[f"config.task.{name}"] = getattr(task, name)
    config_lib.validate_mesh(config.mesh)
    for key, value in fractions.items():
        _require(0 <= value < 1, key, value, "must be at least 0 and less than 1")
    for key, value in positive.items():
        _require(value > 0, key, value, "must be greater than 0")
    stride = task.stride if isinstance(task, QuestionTask) else 0
    for key, value in (
        ("config.task.stride", stride),
        ("config.num_layers", config.num_layers),
        ("config.recipe.weight_decay", recipe.weight_decay),
        ("config.distill.label_weight", config.distill.label_weight),
        ("config.distill.logits_weight", config.distill.logits_weight),
        ("config.distill.states_weight", config.distill.states_weight),
        ("config.eval_every_steps", config.eval_every_steps),
        ("config.early_stop_evals", config.early_stop_evals),
    ):
        _require(value >= 0, key, value, "must not be negative")
    _require(
        config.sequence_length >= 5,
        "config.sequence_length",
        config.sequence_length,
        "must be at least 5, the minimum for a pair: [CLS] a [SEP] b [SEP]",
    )


def _require(ok: bool, key: str, value: Any, problem: str) -> None:
    if not ok:
        raise ConfigError(f"{key}={value!r} {problem}")
