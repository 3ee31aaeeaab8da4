"""Fine-tuning configuration: frozen dataclasses, built and validated once.

As in bert_jax/config, there are no defaults: every value is set in the config file, and
the type of a field has its range or its choices. config.task.kind determines which keys
config.task has.
"""

import dataclasses
import json
from typing import Annotated, Literal

import ml_collections

from bert_jax import storage
from bert_jax.config import ComputeDtype, MeshConfig, Remat, Tracker, check_mesh
from bert_jax.config.validation import (
    Count,
    CountOrZero,
    Fraction,
    Length,
    NotNegative,
    PathOrEmpty,
    Positive,
    Range,
    build,
    members,
    one_of,
    require,
)
from bert_jax.errors import ConfigError
from bert_jax.finetuning import predictions


@dataclasses.dataclass(frozen=True)
class KindAndPath:
    """KIND:PATH, with the path in its normal form, or tfds:NAME:SPLIT."""

    def __str__(self) -> str:
        return "a kind and a path"

    def check(self, key: str, value: str) -> str:
        """Returns the spec; raises ConfigError if its path is invalid."""
        kind, _, path = value.partition(":")
        if kind == "tfds" or not path:
            return value
        return f"{kind}:{storage.parse_path(key, path)}"


Spec = Annotated[str, KindAndPath()]
TextColumns = Annotated[tuple[str, ...], Length(min=1, max=2)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Specs of data sets, in the syntax of tables.py, conll.py or squad.py."""

    train: Spec  # the training set
    # dev sets; the metric of the first one selects the best checkpoint
    dev: Annotated[tuple[Spec, ...], Length(min=1)]
    test: tuple[Spec, ...]  # data sets without labels; may be empty
    header: tuple[str, ...]  # column names of a tsv or csv without a header line


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask:
    """A class, a score or several labels of a text or a pair of texts."""

    kind: Literal["classification", "regression", "multi_label"]  # what to predict
    text: TextColumns  # one text column, or two for text pairs
    label: str  # label column
    labels: tuple[str, ...]  # class names; (): take them from the training set
    glue: tuple[str, ...]  # keys of predictions.GLUE_FILES, one for each of data.test
    index: str  # column of a test example's index in GLUE's file; "": row number
    threshold: Fraction  # multi_label: minimum probability of a predicted class


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceTask:
    """The best of several continuations of a text."""

    kind: Literal["multiple_choice"]  # what to predict
    text: TextColumns  # context column; optionally a column prefixed to all choices
    # one column per choice, or a single column of lists
    choices: Annotated[tuple[str, ...], Length(min=1)]
    label: str  # column of the correct choice's index, from 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingTask:
    """A tag of each word."""

    kind: Literal["tagging"]  # what to predict
    # list-valued column of a table; in a conll: file "2" is its second column, and any
    # other text its first
    words: str
    # list-valued column of a table; in a conll: file "3" is its third column, and any
    # other text its last
    tags: str
    labels: tuple[str, ...]  # BIO tags and O; (): take them from the training set


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionTask:
    """The span of a paragraph that answers a question."""

    kind: Literal["question_answering"]  # what to predict
    stride: CountOrZero  # tokens between the starts of windows; 0: see window_stride
    max_query_length: Count  # maximum tokens of a question
    max_answer_length: Count  # maximum tokens of an answer
    num_best: Count  # answers to keep for each question
    null_threshold: float  # null odds above this value mean "no answer"
    answer_units: Literal["words", "characters"]  # units of the F1 score

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
    """The similarity of two texts, as the cosine of their embeddings."""

    kind: Literal["similarity"]  # what to predict
    text: Annotated[tuple[str, ...], Length(min=2, max=2)]  # the two text columns
    label: str  # column of the similarity score
    max_label: Positive  # score whose target cosine is 1; the target of score 0 is 0
    # columns of the training set without scores: two of texts that belong together, or
    # one, whose texts differ by dropout alone; the other texts of the batch are
    # negatives. (): train on the scores
    positives: Annotated[tuple[str, ...], Length(min=0, max=2)]
    temperature: Positive  # divides the cosines to the positive and the negatives


Task = TextTask | ChoiceTask | TaggingTask | QuestionTask | SimilarityTask
TASKS: dict[str, type[Task]] = members(Task)
METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "matthews", "f1", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "multi_label": ("micro_f1", "macro_f1"),
    "tagging": ("f1", "precision", "recall"),
    "question_answering": ("f1", "exact_match"),
    "multiple_choice": ("accuracy",),
    "similarity": ("spearman", "pearson"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutConfig:
    """Dropout rates, which are in config.model in pretraining."""

    hidden_prob: Fraction  # of embeddings and layer outputs
    attention_prob: Fraction  # of attention probabilities
    head_prob: Fraction  # of the input of the task's head


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """The epochs, the batches and the optimizer."""

    num_epochs: Count  # passes over the training set
    global_batch_size: Count  # examples or windows, over all devices and microbatches
    group_by_length: bool  # put rows of similar length into the same batch
    optimizer: Literal["adamw_bert", "adamw"]  # see training/optimizer.py
    learning_rate: Positive  # peak of linear warmup followed by linear decay to 0
    learning_rates: tuple[Positive, ...]  # peaks that a sweep tries
    warmup_fraction: Fraction  # share of all steps
    weight_decay: NotNegative  # decoupled; LayerNorm and biases do not decay
    beta1: Fraction  # decay of the first moment
    beta2: Fraction  # decay of the second moment
    epsilon: Positive  # added outside the square root
    clip_norm: Positive  # maximum norm of the gradient of the batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Distillation of a fine-tuned model, the teacher."""

    # directory of a model fine-tuned on the task; "": no distillation
    teacher: PathOrEmpty
    label_weight: NotNegative  # weight of the loss on labels
    logits_weight: NotNegative  # weight of the distance between logits
    temperature: Positive  # divides both models' logits before they are compared
    states_weight: NotNegative  # weight of the distance between hidden states


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """The config of a fine-tuning run."""

    compute_dtype: ComputeDtype  # auto: bfloat16 on TPU and GPU, else float32
    accumulation_steps: Count  # microbatches per optimizer step
    remat: Remat  # recomputation in the backward pass of a layer
    log_every_steps: Count  # steps between log lines
    # directory of compiled programs; "auto": in ~/.cache/bert_jax; "": not stored
    compilation_cache_dir: PathOrEmpty
    # services that the metrics are also sent to; see monitoring/tracker_process.py
    trackers: tuple[Tracker, ...]
    mesh: MeshConfig
    eval_every_steps: CountOrZero  # steps between dev evaluations; 0: once per epoch
    early_stop_evals: CountOrZero  # stop after this many without improvement; 0: never
    max_bad_steps: Count  # stop after this many consecutive non-finite steps
    data: DataConfig
    # maximum tokens in a row; a pair has at least 5: [CLS] a [SEP] b [SEP]. A model
    # with fewer positions lowers the value of a file; that of a flag has to fit
    sequence_length: Annotated[int, Range(min=5)]
    num_layers: CountOrZero  # keep this many of the encoder's first layers; 0: all
    dropout: DropoutConfig
    recipe: RecipeConfig
    distill: DistillConfig
    metric: str  # one of METRICS for the task; selects the best checkpoint
    task: Task

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def from_config_dict(config: ml_collections.ConfigDict) -> FinetuneConfig:
    """Builds and validates the config.

    Raises:
      ConfigError: if a key is missing, unknown or of the wrong type, or if values
        contradict each other.
    """
    if "task" not in config and "phases" in config:
        raise ConfigError(
            "--config is a pretraining config for bert_jax.train; fine-tuning configs"
            " are in configs/finetune"
        )
    finetune: FinetuneConfig = build(FinetuneConfig, config, "config")
    metrics = METRICS[finetune.task.kind]
    require(
        finetune.metric in metrics,
        "config.metric",
        finetune.metric,
        f"{one_of(metrics)} for config.task.kind={finetune.task.kind}",
    )
    check_mesh(finetune.mesh)
    _check_distill(finetune.distill)
    task = finetune.task
    if isinstance(task, TextTask):
        _check_glue(task, finetune.data)
    if isinstance(task, TextTask | TaggingTask):
        _check_labels(task)
    if isinstance(task, SimilarityTask) and task.positives:
        _check_negatives(task, finetune)
    check_length(finetune)
    return finetune


def check_length(config: FinetuneConfig) -> None:
    """Raises ConfigError if config.sequence_length does not suit the task."""
    if isinstance(config.task, QuestionTask):
        _check_windows(config.task, config.sequence_length)


def _check_distill(distill: DistillConfig) -> None:
    if distill.teacher:
        require(
            distill.logits_weight + distill.states_weight > 0,
            "config.distill.teacher",
            distill.teacher,
            "has no effect: set config.distill.logits_weight or"
            " config.distill.states_weight above 0",
        )
    else:
        weights = (distill.label_weight, distill.logits_weight, distill.states_weight)
        require(
            weights == (1, 0, 0),
            "config.distill.teacher",
            "",
            "must name a fine-tuned model unless config.distill.label_weight=1,"
            " logits_weight=0 and states_weight=0",
        )


def _check_glue(task: TextTask, data: DataConfig) -> None:
    require(
        len(task.glue) in (0, len(data.test))
        and set(task.glue) <= predictions.GLUE_FILES.keys(),
        "config.task.glue",
        task.glue,
        f"must be empty, or have one of {', '.join(predictions.GLUE_FILES)} for each of"
        " config.data.test",
    )


def _check_labels(task: TextTask | TaggingTask) -> None:
    require(
        len(set(task.labels)) == len(task.labels),
        "config.task.labels",
        task.labels,
        "has a duplicate name",
    )
    require(
        task.kind != "regression" or len(task.labels) <= 1,
        "config.task.labels",
        task.labels,
        "must have at most one name for a regression, whose head has one output",
    )


def _check_windows(task: QuestionTask, sequence_length: int) -> None:
    room = task.room(sequence_length)
    require(
        room > 0,
        "config.task.max_query_length",
        task.max_query_length,
        f"leaves no room for a paragraph in rows of {sequence_length} tokens; lower it,"
        f" for example to {sequence_length // 3}",
    )
    require(
        task.stride <= room,
        "config.task.stride",
        task.stride,
        f"leaves gaps between windows: rows of {sequence_length} hold {room} tokens of"
        " the paragraph beside a question of"
        f" config.task.max_query_length={task.max_query_length}; set"
        " config.task.stride=0 for overlapping windows",
    )


def _check_negatives(task: SimilarityTask, config: FinetuneConfig) -> None:
    require(
        config.accumulation_steps == 1,
        "config.accumulation_steps",
        config.accumulation_steps,
        "must be 1 with config.task.positives, whose negatives are the other texts of"
        " the whole batch",
    )
    dropout = config.dropout
    require(
        len(task.positives) == 2 or dropout.hidden_prob + dropout.attention_prob > 0,
        "config.dropout.hidden_prob",
        dropout.hidden_prob,
        "must be above 0 with one column in config.task.positives: without dropout, the"
        " two embeddings of a text are equal",
    )
