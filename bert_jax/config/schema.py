"""The schema of configs: frozen dataclasses, built and validated once.

A config file returns an `ml_collections.ConfigDict`. `from_config_dict` converts it to
an `ExperimentConfig`, so that no other code handles a ConfigDict. There are no
defaults here: every number that a run uses is in its config file.

The type of a field declares its range or choices, which validation.py checks. The
comment beside or above a field documents it. The functions at the end of this module
check conditions that involve several fields.
"""

import dataclasses
import json
import math
import typing
from typing import Annotated, Literal

import ml_collections

from bert_jax.config.validation import (
    Count,
    CountOrZero,
    Fraction,
    Length,
    NotNegative,
    Positive,
    Probability,
    Range,
    build,
    multiples_around,
    require,
)
from bert_jax.errors import ConfigError

AxisSize = Annotated[int, Range(min=-1)]
Dtype = Literal["float32", "bfloat16"]
ComputeDtype = Literal["auto", "float32", "bfloat16"]
TokenizerKind = Literal["wordpiece", "sentencepiece_unigram", "sentencepiece_bpe"]
OptimizerName = Literal["adamw_bert", "adamw", "lamb"]
Schedule = Literal["linear", "cosine", "constant", "wsd"]
# Recomputation in the backward pass of a layer: none, everything, or everything except
# the matmuls with its kernels.
Remat = Literal["none", "full", "matmuls"]
# The names are those of Python packages.
Tracker = Literal["wandb", "mlflow", "trackio"]
TOKENIZER_KINDS: tuple[TokenizerKind, ...] = typing.get_args(TokenizerKind)
OPTIMIZERS: tuple[OptimizerName, ...] = typing.get_args(OptimizerName)
SCHEDULES: tuple[Schedule, ...] = typing.get_args(Schedule)
REMAT: tuple[Remat, ...] = typing.get_args(Remat)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The corpus, and the construction of pairs and masks from it."""

    # specs, see data/sources/sources.py
    sources: Annotated[tuple[str, ...], Length(min=1)]
    source_weights: tuple[Positive, ...]  # repetitions of each source; (): once each
    corpus_dir: str  # directory of the corpus, written by prepare or at the first run
    # tokenize the text during training; the corpus directory has an index of it, and
    # the held-out documents
    stream: bool
    num_shards: Count  # files of the training set; documents are assigned by digest
    num_streams: Count  # parallel readers of the corpus, divided among processes
    validation_fraction: Fraction  # fraction of documents that are held out, by digest
    # a document with invalid UTF-8: raise an error, insert U+FFFD, or skip it
    invalid_utf8: Literal["error", "replace", "skip"]
    # in UTF-8; longer lines are split at a space, so it should exceed any sentence
    max_line_bytes: Annotated[int, Range(min=1024)]
    max_document_bytes: int  # in UTF-8; longer documents are split between lines
    word_segmented: bool  # whitespace also separates words of ideographs
    short_seq_prob: Fraction  # fraction of documents with a random shorter length
    next_sentence: bool  # sentence pairs and their loss; False: rows of one segment
    masked_lm_prob: Fraction  # fraction of a row's tokens that are masked
    mask_replace_prob: Probability  # fraction of masked tokens replaced by [MASK]
    # fraction of masked tokens replaced by a random token; the rest are unchanged
    mask_random_prob: Probability
    mask_random_special: bool  # random tokens may be special ones, as in BERT
    whole_word_mask: bool  # mask all pieces of a word or none
    # maximum number of pieces or words in a span; length n is drawn with weight 1 / n
    mask_ngram_max: Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer of the corpus."""

    kind: TokenizerKind  # algorithm of the subword vocabulary
    vocab_file: str  # a vocab.txt or .model; "": train one on the sources
    vocab_size: Count  # number of tokens, special tokens included
    lowercase: bool  # WordPiece also drops accents


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes of the model, under Hugging Face's names."""

    hidden_size: Count  # a multiple of num_attention_heads
    num_hidden_layers: Count  # encoder layers
    num_attention_heads: Count  # attention heads in each layer
    intermediate_size: Count  # width of the feed-forward network
    # gelu_new: the tanh form, in Google's code since 2019-02; gelu: the erf form
    hidden_act: Literal["gelu_new", "gelu"]
    hidden_dropout_prob: Fraction  # dropout rate of embeddings and layer outputs
    attention_probs_dropout_prob: Fraction  # dropout rate of attention probabilities
    max_position_embeddings: Count  # maximum length of a row, in tokens
    type_vocab_size: Count  # segment types; pretraining needs two, for A and B
    initializer_range: Positive  # standard deviation of initial kernels
    layer_norm_eps: Positive  # added to the variance in LayerNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A phase of training, with its own sequence length and batch size."""

    num_steps: Count  # optimizer steps
    # tokens in a row, including [CLS] and [SEP]; 8 leave room for a short pair
    sequence_length: Annotated[int, Range(min=8)]
    global_batch_size: Count  # rows over all devices, processes and microbatches
    max_predictions: Count  # maximum masked tokens in a row
    # maximum sentence pairs packed into a row; 1: as in BERT. At most 32, because
    # masking stores the index of a pair in a few bits of a random word.
    max_sequences_per_row: Annotated[int, Range(min=1, max=32)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossWeightsConfig:
    """The weight of each objective's mean loss in the total loss."""

    masked_lm: Positive  # weight of the masked-LM loss
    # weight of the next-sentence loss; unused if data.next_sentence is False
    next_sentence: NotNegative


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and the learning rate schedule."""

    name: OptimizerName  # see training/optimizer.py
    # after a linear warmup; wsd (warmup-stable-decay) is constant, then decays
    schedule: Schedule
    schedule_by_phase: bool  # restart the schedule at the start of each phase
    reset_moments_by_phase: bool  # set moments to 0 at the start of each phase
    learning_rate: Positive  # peak, at the end of the warmup
    warmup_steps: CountOrZero  # steps until the learning rate reaches its peak
    decay_steps: CountOrZero  # wsd: steps of the decay at the end; others: 0
    weight_decay: NotNegative  # decoupled; not applied to LayerNorm and biases
    beta1: Fraction  # decay of the first moment
    beta2: Fraction  # decay of the second moment
    epsilon: Positive  # added outside the square root
    mu_dtype: Dtype  # dtype of the first moment; the second is float32
    clip_norm: Positive  # maximum norm of the gradient of the global batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """The axis sizes of the mesh; one may be -1 for the remaining devices."""

    data: AxisSize  # data parallelism
    fsdp: AxisSize  # data parallelism with sharded parameters
    tensor: AxisSize  # tensor parallelism over heads, feed-forward and vocabulary
    shard_optimizer: bool  # shard moments and update over data as well (ZeRO-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are saved, and which are kept."""

    every_steps: Count  # steps between checkpoints
    every_minutes: NotNegative  # minutes after which a log step also saves; 0: never
    keep: Count  # number of newest checkpoints
    keep_every_steps: CountOrZero  # also keep the multiples of this step; 0: none
    keep_best: CountOrZero  # also keep this many of lowest held-out loss per phase


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """The response to losses or gradients that are not finite, and to faulty chips."""

    max_bad_steps: Count  # consecutive bad steps before the run rolls back or ends
    # maximum rollbacks to the last checkpoint, which skip the batches after it
    max_rollbacks: CountOrZero
    # steps between replays, which repeat a step and compare the bits; 0: never
    replay_every_steps: CountOrZero


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The evaluation on the held-out set."""

    every_steps: Count  # steps between evaluations
    num_sequences: Count  # rows to evaluate, at most
    masked_lm_prob: Fraction  # as data.masked_lm_prob, for held-out rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """The config of a pretraining run."""

    # seed of the corpus order, the masks, the initial weights and dropout
    seed: Annotated[int, Range(min=0, below=2**63)]
    init_from: str  # initial weights, see loading/initialize.py; "": random
    branch_from: str  # RUN@STEP: start with the state of that checkpoint; "": do not
    budget_hours: NotNegative  # the schedule ends with these hours; 0: at num_steps
    compute_dtype: ComputeDtype  # auto: bfloat16 on TPU and GPU, else float32
    gradient_reduction_dtype: Dtype  # dtype of kernel gradients summed over devices
    accumulation_steps: Count  # microbatches per optimizer step
    remat: Remat  # recomputation in the backward pass of a layer
    log_every_steps: Count  # steps between log lines
    compilation_cache_dir: str  # directory of compiled programs; "": not stored
    # services that the metrics are also sent to; see monitoring/tracker_process.py
    trackers: tuple[Tracker, ...]
    # (first step, number of steps) of a profiler trace for TensorBoard; (): none
    profile: Annotated[tuple[Count, ...], Length(min=0, max=2)]
    data: DataConfig
    tokenizer: TokenizerConfig
    model: ModelConfig
    phases: Annotated[tuple[PhaseConfig, ...], Length(min=1)]
    loss_weights: LossWeightsConfig
    optimizer: OptimizerConfig
    mesh: MeshConfig
    checkpoint: CheckpointConfig
    guard: GuardConfig
    eval: EvalConfig

    @property
    def num_steps(self) -> int:
        return sum(phase.num_steps for phase in self.phases)

    @property
    def schedule_steps(self) -> int:
        """Number of steps of the schedule, or of the shortest one if by phase."""
        if self.optimizer.schedule_by_phase:
            return min(phase.num_steps for phase in self.phases)
        return self.num_steps

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def from_config_dict(config: ml_collections.ConfigDict) -> ExperimentConfig:
    """Builds and validates the config of a pretraining run.

    Raises:
      ConfigError: if a key is missing, unknown or of the wrong type, or if values
        contradict each other.
    """
    if "task" in config:
        raise ConfigError(
            "--config is a fine-tuning config for bert_jax.finetune; those"
            " for pretraining are directly under configs"
        )
    experiment = build(ExperimentConfig, config, "config")
    _check_model_and_data(experiment)
    check_mesh(experiment.mesh)
    for i, phase in enumerate(experiment.phases):
        _check_phase(phase, f"config.phases[{i}]", experiment)
        _check_packed_predictions(phase, f"config.phases[{i}]", experiment)
    _check_schedule(experiment)
    _check_profile(experiment)
    return experiment


def from_json(text: str) -> ExperimentConfig:
    """Reads a config written by `ExperimentConfig.to_json`."""
    return from_config_dict(json.loads(text))


def _check_model_and_data(config: ExperimentConfig) -> None:
    model, data = config.model, config.data
    require(
        model.hidden_size % model.num_attention_heads == 0,
        "config.model.hidden_size",
        model.hidden_size,
        f"must be a multiple of num_attention_heads={model.num_attention_heads}",
    )
    require(
        model.type_vocab_size >= 2,
        "config.model.type_vocab_size",
        model.type_vocab_size,
        "must be at least 2, one type for each segment of a pair",
    )
    require(
        data.max_document_bytes >= data.max_line_bytes,
        "config.data.max_document_bytes",
        data.max_document_bytes,
        f"must be at least max_line_bytes={data.max_line_bytes}",
    )
    require(
        len(data.source_weights) in (0, len(data.sources)),
        "config.data.source_weights",
        data.source_weights,
        f"must be empty or have one weight for each of the {len(data.sources)} sources",
    )
    for spec in data.sources:
        require(
            not (data.stream and spec.startswith(("embedded:", "tfds:"))),
            "config.data.stream",
            data.stream,
            f"needs sources that are files, such as parquet:GLOB#column or"
            f" jsonl:GLOB#field, but config.data.sources has {spec!r}",
        )
    require(
        data.mask_replace_prob + data.mask_random_prob <= 1,
        "config.data (mask_replace_prob, mask_random_prob)",
        (data.mask_replace_prob, data.mask_random_prob),
        "must have a sum of at most 1",
    )
    require(
        data.num_shards % data.num_streams == 0,
        "config.data.num_streams",
        data.num_streams,
        f"must divide num_shards={data.num_shards}",
    )
    require(
        config.tokenizer.kind == "wordpiece" or not data.word_segmented,
        "config.data.word_segmented",
        data.word_segmented,
        "is for WordPiece only; SentencePiece always separates words at whitespace",
    )
    require(
        config.checkpoint.keep_best == 0 or data.validation_fraction > 0,
        "config.checkpoint.keep_best",
        config.checkpoint.keep_best,
        "needs held-out documents; set it to 0, or set config.data.validation_fraction"
        " above 0",
    )


def _check_phase(phase: PhaseConfig, path: str, config: ExperimentConfig) -> None:
    require(
        phase.sequence_length <= config.model.max_position_embeddings,
        f"{path}.sequence_length",
        phase.sequence_length,
        "must be at most config.model.max_position_embeddings="
        f"{config.model.max_position_embeddings}",
    )
    require(
        phase.max_predictions <= phase.sequence_length,
        f"{path}.max_predictions",
        phase.max_predictions,
        f"must be at most sequence_length={phase.sequence_length}",
    )
    streams = config.data.num_streams
    # distributed/mesh.py checks the division over devices. The sizes suggested here
    # pass that check, as far as the config gives the number of devices.
    sizes = (config.mesh.data, config.mesh.fsdp, config.accumulation_steps)
    rows = math.lcm(streams, math.prod(size for size in sizes if size > 0))
    require(
        phase.global_batch_size % streams == 0,
        f"{path}.global_batch_size",
        phase.global_batch_size,
        f"must be a multiple of config.data.num_streams={streams}; try"
        f" {multiples_around(phase.global_batch_size, rows)}",
    )


def _check_packed_predictions(
    phase: PhaseConfig, path: str, config: ExperimentConfig
) -> None:
    """Checks that max_predictions holds the masks of all pairs packed in a row."""
    if phase.max_sequences_per_row == 1:
        return
    # A pair of n tokens has max(1, round(n * p)) masks. That exceeds n * p by at most
    # 0.5, except for the shortest pairs: [CLS] a [SEP] b [SEP] or [CLS] a [SEP].
    shortest = 5 if config.data.next_sentence else 3
    rate = max(config.data.masked_lm_prob, config.eval.masked_lm_prob)
    over = max(0.5, 1.0 - shortest * rate)
    share = phase.sequence_length * rate
    needed = int(share + over * phase.max_sequences_per_row)
    require(
        phase.max_predictions >= needed,
        f"{path}.max_predictions",
        phase.max_predictions,
        f"cannot hold the masks of max_sequences_per_row={phase.max_sequences_per_row}"
        f" pairs; try {needed}",
    )


def _check_schedule(config: ExperimentConfig) -> None:
    optimizer, num_steps = config.optimizer, config.schedule_steps
    is_wsd = optimizer.schedule == "wsd"
    require(
        not config.budget_hours or (is_wsd and not optimizer.schedule_by_phase),
        "config.budget_hours",
        config.budget_hours,
        "needs config.optimizer.schedule='wsd' and schedule_by_phase=False",
    )
    # A linear schedule may end during the warmup; others need steps after it.
    require(
        not (is_wsd or optimizer.schedule == "cosine")
        or optimizer.warmup_steps < num_steps,
        "config.optimizer.warmup_steps",
        optimizer.warmup_steps,
        f"must be below the {num_steps} steps of the schedule",
    )
    least, most = 0, 0
    problem = "must be 0 with another schedule than 'wsd', or with config.budget_hours"
    if is_wsd and not config.budget_hours:
        least, most = 1, num_steps - optimizer.warmup_steps
        problem = f"must be from 1 to {most}; try a fifth of {num_steps} steps"
    require(
        least <= optimizer.decay_steps <= most,
        "config.optimizer.decay_steps",
        optimizer.decay_steps,
        problem,
    )


def _check_profile(config: ExperimentConfig) -> None:
    require(
        len(config.profile) != 1 and sum(config.profile) <= config.num_steps + 1,
        "config.profile",
        config.profile,
        "must be (first step, number of steps) within the"
        f" {config.num_steps} steps of the run, for example (100,5), or empty",
    )


def check_mesh(mesh: MeshConfig) -> None:
    """Raises ConfigError if the axis sizes are invalid for any number of devices."""
    sizes = (mesh.data, mesh.fsdp, mesh.tensor)
    require(
        0 not in sizes and sizes.count(-1) <= 1,
        "config.mesh (data, fsdp, tensor)",
        sizes,
        "sizes must be at least 1, or -1 for at most one of them",
    )
