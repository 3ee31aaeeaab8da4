"""Fine-tuning configuration: frozen dataclasses, built and validated once.

As in bert_jax/config, there are no defaults: every value is set in the config file, and
the type of a field has its range or its choices. config.task.kind determines which keys
config.task has; they are fields of the classes in tasks/.
"""

import dataclasses
from typing import Annotated, Literal

import ml_collections

from bert_jax import storage
from bert_jax.config import check_mesh
from bert_jax.config.schema import AdamConfig, CommonConfig, MeshConfig
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
    one_of,
    require,
)
from bert_jax.errors import ConfigError
from bert_jax.finetuning.tasks import AnyTask


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Specs of data sets; see tables.py, tagging.py and question_data.py."""

    train: Spec  # the training set
    # dev sets; the metric of the first one selects the best checkpoint
    dev: Annotated[tuple[Spec, ...], Length(min=1)]
    test: tuple[Spec, ...]  # data sets without labels; may be empty
    header: tuple[str, ...]  # column names of a tsv or csv without a header line


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutConfig:
    """Dropout rates, which are in config.model in pretraining.

    The first two are 0 where they are 0 in the model, unless a flag sets them or the
    task is SimCSE.
    """

    hidden_prob: Fraction  # of embeddings and layer outputs
    attention_prob: Fraction  # of attention probabilities
    head_prob: Fraction  # of the input of the task's head


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig(AdamConfig):
    num_epochs: Count  # passes over the training set
    global_batch_size: Count  # examples or windows, over all devices and microbatches
    group_by_length: bool  # put rows of similar length into the same batch
    optimizer: Literal["adamw_bert", "adamw"]  # see training/optimizer.py
    learning_rate: Positive  # peak of linear warmup followed by linear decay to 0
    # peaks that a sweep tries
    learning_rates: Annotated[tuple[Positive, ...], Length(min=1)]
    warmup_fraction: Fraction  # share of all steps


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
class FinetuneConfig(CommonConfig):
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
    metric: str  # a metric of the task; selects the best checkpoint
    task: AnyTask  # the classes in tasks/


# Prefixes of keys that may change between the calls of a sweep: they affect where and
# how a run computes, but not its results.
MAY_CHANGE = (
    "config.mesh",
    "config.accumulation_steps",
    "config.remat",
    "config.log_every_steps",
    "config.compilation_cache_dir",
    "config.trackers",
    "config.data.test",  # predicted anew in every call
    "config.task.glue",
    "config.task.index",
    "config.recipe.learning_rate",  # and learning_rates: each has its own runs
    "config.distill.teacher",  # the paths may change; the digests are compared
    "model",
)


def from_config_dict(config: ml_collections.ConfigDict) -> FinetuneConfig:
    if "task" not in config and "phases" in config:
        raise ConfigError(
            "--config is a pretraining config for bert_jax.train; fine-tuning configs"
            " are in configs/finetune"
        )
    finetune: FinetuneConfig = build(FinetuneConfig, config, "config")
    metrics = finetune.task.metrics
    require(
        finetune.metric in metrics,
        "config.metric",
        finetune.metric,
        f"{one_of(metrics)} for config.task.kind={finetune.task.kind}",
    )
    check_mesh(finetune.mesh)
    _check_distill(finetune.distill)
    finetune.task.check(finetune.sequence_length, finetune)
    return finetune


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
