"""What tuning a model on a task is made of: frozen dataclasses, built and checked once.

As in bert_jax/config.py there is no default here: every number stands in its config
file. config.task.kind decides which keys config.task has.
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
    """Specs of tables.py, conll.py or squad.py."""

    train: str
    dev: tuple[str, ...]  # the first one chooses the best checkpoint
    test: tuple[str, ...]  # without labels; () for none
    header: tuple[str, ...]  # of a tsv or csv whose first line is no header; else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask:
    kind: str  # classification | regression | multi_label
    text: tuple[str, ...]  # the column of the text, or the two of a pair
    label: str  # the column of the label
    labels: tuple[str, ...]  # names of the classes; () for those of the training set
    glue: tuple[str, ...]  # names in predictions.GLUE_FILES, one for each of data.test
    index: str  # the column of a test example's place in GLUE's file; "": their order
    threshold: float  # of a class's probability, of multi_label


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceTask:
    kind: str  # multiple_choice
    text: tuple[str, ...]  # the context's column, and that of what choices begin with
    choices: tuple[str, ...]  # a column each, or one of lists
    label: str  # the column of the right choice's number, from 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingTask:
    kind: str  # tagging
    words: str  # columns of lists, of a table; files of columns have no names
    tags: str
    labels: tuple[str, ...]  # BIO tags and O; () for those of the training set


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionTask:
    kind: str  # question_answering
    stride: int  # tokens from a window of a paragraph to the next; 0: see below
    max_query_length: int  # tokens of a question
    max_answer_length: int  # tokens of an answer
    num_best: int  # answers to keep of each question
    null_threshold: float  # null odds above it are no answer
    answer_units: str  # words | characters: what scores compare, see answer_units.py

    def room(self, length: int) -> int:
        """Returns the tokens that a row has for the paragraph beside any question."""
        return length - 3 - self.max_query_length  # [CLS] question [SEP] window [SEP]

    def window_stride(self, length: int) -> int:
        """Returns the stride; for 0 half of the room, up to run_squad.py's 128."""
        return self.stride or max(1, min(128, self.room(length) // 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarityTask:
    kind: str  # similarity
    text: tuple[str, ...]  # the columns of the two texts
    label: str  # the column of how near they are
    max_label: float  # whose cosine is to be 1; that of 0 is 0


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
    hidden_prob: float  # of the encoder, as config.model has it in pretraining
    attention_prob: float
    head_prob: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    num_epochs: int
    global_batch_size: int  # examples, or windows, over all devices and microbatches
    group_by_length: bool  # batches of rows about as long as each other
    optimizer: str  # one of OPTIMIZERS, see optimizer.py
    learning_rate: float  # the peak, after a linear warmup, before a line to 0
    learning_rates: tuple[float, ...]  # what a sweep tries
    warmup_fraction: float  # of all steps
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    clip_norm: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig:
    teacher: str  # directory of a model tuned on the task; "": there is none
    label_weight: float  # of the loss of the labels
    logits_weight: float  # of the distance from the teacher's logits
    temperature: float  # at which these are compared
    states_weight: float  # of the distance from the teacher's states


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Settings:
    compute_dtype: str  # this and the next as in config.ExperimentConfig
    accumulation_steps: int
    remat: str
    log_every_steps: int
    compilation_cache_dir: str
    mesh: MeshConfig
    eval_every_steps: int  # the dev set is predicted; 0: once an epoch
    early_stop_evals: int  # ends when so many in a row were no better; 0: never
    max_bad_steps: int  # in a row, not finite; then the run ends
    data: DataConfig
    sequence_length: int
    num_layers: int  # the encoder's first ones; 0: all
    dropout: DropoutConfig
    recipe: RecipeConfig
    distill: DistillConfig
    metric: str  # one of METRICS, by which checkpoints are compared


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(_Settings):
    task: Task

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def from_config_dict(config: ml_collections.ConfigDict) -> FinetuneConfig:
    """Builds and validates the config.

    Raises:
      ConfigError: when a key is missing, unknown or of the wrong type, or when values
        contradict each other.
    """
    values: Any = config  # which pyright takes for a tuple
    kind = values.task.get("kind") if "task" in values else None
    if kind is None and "phases" in values:
        raise ConfigError(
            "--config is one of train, of text without labels; those of finetune are in"
            " configs/finetune"
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
        f"must be one of {', '.join(metrics)} for a task of {task.kind}",
    )
    _require(bool(config.data.dev), "config.data.dev", config.data.dev, "names no data")
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
            "teaches nothing: set distill.logits_weight or distill.states_weight",
        )
    else:
        weights = (distill.label_weight, distill.logits_weight, distill.states_weight)
        _require(
            weights == (1, 0, 0),
            "config.distill.teacher",
            "",
            "has to name a tuned model where config.distill has other weights than 1 of"
            " the labels",
        )


def _validate_task(config: FinetuneConfig) -> None:
    task = config.task
    if isinstance(task, TextTask):
        _require(
            len(task.glue) in (0, len(config.data.test))
            and set(task.glue) <= predictions.GLUE_FILES.keys(),
            "config.task.glue",
            task.glue,
            f"must be empty, or one of {', '.join(predictions.GLUE_FILES)} for each of"
            " config.data.test",
        )
    if isinstance(task, TextTask | TaggingTask):
        _require(
            len(set(task.labels)) == len(task.labels),
            "config.task.labels",
            task.labels,
            "has a name twice",
        )
        _require(
            task.kind != "regression" or len(task.labels) <= 1,
            "config.task.labels",
            task.labels,
            "must be empty, or one name, for a regression: its head has one number",
        )
    if isinstance(task, TextTask | ChoiceTask):
        _require(
            len(task.text) in (1, 2),
            "config.task.text",
            task.text,
            "must name one column or two",
        )
    if isinstance(task, ChoiceTask):
        _require(
            bool(task.choices),
            "config.task.choices",
            task.choices,
            "must name the columns of the choices, or one that has lists of them",
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
            f"{config.sequence_length}; lower the one or raise the other",
        )
        _require(
            task.stride <= room,
            "config.task.stride",
            task.stride,
            "leaves gaps between windows: rows of config.sequence_length="
            f"{config.sequence_length} have {room} tokens for the paragraph beside a"
            f" question of config.task.max_query_length={task.max_query_length}; set"
            " config.task.stride=0 for windows that overlap",
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
        _require(0 <= value < 1, key, value, "must be at least 0 and below 1")
    for key, value in positive.items():
        _require(value > 0, key, value, "must be above 0")
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
        "must be at least 5 to hold a pair",
    )


def _require(ok: bool, key: str, value: Any, problem: str) -> None:
    if not ok:
        raise ConfigError(f"{key}={value!r} {problem}")
