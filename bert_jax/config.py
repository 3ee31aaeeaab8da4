"""The schema of configs: frozen dataclasses, built and validated once.

A config file returns an `ml_collections.ConfigDict`. `from_config_dict` converts it to
an `ExperimentConfig`, so that no other code handles a ConfigDict. There are no
defaults here: every number that a run uses is in its config file.
"""

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import ml_collections

from bert_jax import errors

# The index of a pair takes a few bits of the words that order the masks of its row.
MAX_SEQUENCES_PER_ROW = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The corpus, and the construction of pairs and masks from it."""

    sources: tuple[str, ...]  # specs, see data/sources/sources.py
    source_weights: tuple[float, ...]  # repetitions of each source; () for once each
    corpus_dir: str
    num_shards: int  # files of the training set; documents are assigned by digest
    num_streams: int  # parallel readers of the corpus, divided among processes
    validation_fraction: float  # fraction of documents in the held-out set, by digest
    invalid_utf8: str  # error | replace (by U+FFFD) | skip (the document)
    max_line_bytes: int  # in UTF-8; longer lines are split at a space
    max_document_bytes: int  # in UTF-8; longer documents are split between lines
    word_segmented: bool  # whitespace also separates words of ideographs
    short_seq_prob: float  # fraction of documents with a random shorter target length
    next_sentence: bool  # sentence pairs and their loss; False: rows of one segment
    masked_lm_prob: float  # fraction of a row's tokens that are masked
    mask_replace_prob: float  # fraction of masked tokens that become [MASK]
    mask_random_prob: float  # fraction that become a random token; the rest are kept
    mask_random_special: bool  # random tokens may be special ones, as in BERT
    whole_word_mask: bool  # mask all pieces of a word or none
    mask_ngram_max: int  # a span has n <= this pieces or words, with weight 1 / n


TOKENIZER_KINDS = ("wordpiece", "sentencepiece_unigram", "sentencepiece_bpe")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer of the corpus."""

    kind: str  # one of TOKENIZER_KINDS
    vocab_file: str  # a vocab.txt or .model; "": train one on the sources
    vocab_size: int
    lowercase: bool  # WordPiece also drops accents


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes of the model, under Hugging Face's names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str  # gelu_new (tanh form, in Google's code since 2019-02) | gelu (erf)
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int
    initializer_range: float
    layer_norm_eps: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A phase of training, with its own sequence length and batch size."""

    num_steps: int
    sequence_length: int
    global_batch_size: int  # rows over all devices, processes and microbatches
    max_predictions: int  # maximum masked tokens in a row
    max_sequences_per_row: int  # sentence pairs packed into a row; 1: as in BERT


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossWeightsConfig:
    """The weight of each objective's mean loss in the total loss."""

    masked_lm: float
    next_sentence: float  # unused if data.next_sentence is False


# Recomputation in the backward pass of a layer: none, of everything, or of everything
# except the products with its kernels.
REMAT = ("none", "full", "matmuls")
OPTIMIZERS = ("adamw_bert", "adamw", "lamb")
SCHEDULES = ("linear", "cosine", "constant")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and the learning rate schedule."""

    name: str  # one of OPTIMIZERS, see training/optimizer.py
    schedule: str  # one of SCHEDULES, after a linear warmup
    schedule_by_phase: bool  # run the schedule once in each phase, not once in all
    reset_moments_by_phase: bool  # set moments to 0 at the start of each phase
    learning_rate: float  # peak, at the end of the warmup
    warmup_steps: int
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float  # added outside the square root
    mu_dtype: str  # float32 | bfloat16, for the first moment; the second is float32
    clip_norm: float  # maximum norm of the gradient of the global batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """The axis sizes of the mesh; one may be -1 for the remaining devices."""

    data: int
    fsdp: int
    tensor: int
    shard_optimizer: bool  # shard moments and update over data as well (ZeRO-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are saved, and which are kept."""

    every_steps: int
    every_minutes: float  # additional saves at log lines, after this time; 0: none
    keep: int  # number of newest checkpoints
    keep_every_steps: int  # also keep steps that are multiples of this; 0: none
    keep_best: int  # also keep this many of lowest held-out loss in each phase


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """The response to losses or gradients that are not finite, and to faulty chips."""

    max_bad_steps: int  # consecutive steps before the run rolls back or ends
    max_rollbacks: int  # to the last checkpoint, skipping the batches since; 0: none
    replay_every_steps: int  # repeat a step and compare the bits; 0: never


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The evaluation on the held-out set."""

    every_steps: int
    num_sequences: int
    masked_lm_prob: float  # as data.masked_lm_prob, for held-out rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """The config of a pretraining run."""

    seed: int
    init_from: str  # initial weights, see loading/initialize.py; "": random
    compute_dtype: str  # auto (bfloat16 on TPU and GPU, else float32) | a dtype
    # float32 | bfloat16, for the sum of kernel gradients over devices
    gradient_reduction_dtype: str
    accumulation_steps: int  # microbatches per optimizer step
    remat: str  # one of REMAT
    log_every_steps: int
    compilation_cache_dir: str  # directory of compiled programs; "": not stored
    data: DataConfig
    tokenizer: TokenizerConfig
    model: ModelConfig
    phases: tuple[PhaseConfig, ...]
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
        """The steps of the learning rate schedule; with several, of the shortest."""
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
        raise errors.ConfigError(
            "--config is a fine-tuning config; use one for pretraining, in configs/"
            " itself"
        )
    experiment = build(ExperimentConfig, config, "config")
    _validate(experiment)
    return experiment


def from_json(text: str) -> ExperimentConfig:
    """Reads a config written by `ExperimentConfig.to_json`."""
    return from_config_dict(json.loads(text))


def build(kind: type, values: Any, path: str) -> Any:
    """Builds a dataclass, tuple or scalar of type `kind` from plain values.

    Args:
      kind: the type to build.
      values: a mapping, list or scalar.
      path: the name of the value, for error messages.

    Raises:
      ConfigError: if a key is missing, unknown or of the wrong type.
    """
    if dataclasses.is_dataclass(kind):
        if not isinstance(values, Mapping | ml_collections.ConfigDict):
            raise errors.ConfigError(
                f"{path} is {values!r}; it must be a section with keys"
            )
        types_by_name = typing.get_type_hints(kind)
        for key in values:
            if key not in types_by_name:
                raise errors.ConfigError(_unknown_key(path, key, list(types_by_name)))
        for key in types_by_name:
            if key not in values:
                raise errors.ConfigError(
                    f"{path}.{key} is missing; copy it from another config file"
                )
        return kind(
            **{
                key: build(sub, values[key], f"{path}.{key}")
                for key, sub in types_by_name.items()
            }
        )
    if isinstance(kind, types.GenericAlias):  # tuple[X, ...]
        if not isinstance(values, list | tuple):
            raise errors.ConfigError(
                f"{path} is {values!r}; it must be a list, for example [{values!r}]"
            )
        item = typing.get_args(kind)[0]
        return tuple(build(item, v, f"{path}[{i}]") for i, v in enumerate(values))
    if kind is float and isinstance(values, int) and not isinstance(values, bool):
        values = float(values)
    if type(values) is not kind:
        raise errors.ConfigError(
            f"{path} is {values!r} ({type(values).__name__});"
            f" it must be of type {kind.__name__}"
        )
    if isinstance(values, float) and not math.isfinite(values):
        raise errors.ConfigError(f"{path} is {values}; it must be a finite number")
    return values


def _unknown_key(path: str, key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"{path}.{key} is not a config key; the nearest is {path}.{close[0]}"


def _validate(config: ExperimentConfig) -> None:
    _validate_ranges(config)
    _validate_choices(config)
    model, data = config.model, config.data
    _require(
        model.hidden_size % model.num_attention_heads == 0,
        "config.model.hidden_size",
        model.hidden_size,
        f"must be a multiple of num_attention_heads={model.num_attention_heads}",
    )
    _require(
        bool(data.sources),
        "config.data.sources",
        data.sources,
        "must have at least one source",
    )
    # Long enough for a sentence, and for any character.
    _require(
        data.max_line_bytes >= 1024,
        "config.data.max_line_bytes",
        data.max_line_bytes,
        "must be at least 1024",
    )
    _require(
        data.max_document_bytes >= data.max_line_bytes,
        "config.data.max_document_bytes",
        data.max_document_bytes,
        f"must be at least max_line_bytes={data.max_line_bytes}",
    )
    _validate_source_weights(data)
    keep_best = config.checkpoint.keep_best
    _require(
        keep_best == 0 or data.validation_fraction > 0,
        "config.checkpoint.keep_best",
        keep_best,
        "needs held-out documents; set it to 0, or set config.data.validation_fraction"
        " above 0",
    )
    _require(
        config.tokenizer.kind == "wordpiece" or not data.word_segmented,
        "config.data.word_segmented",
        data.word_segmented,
        "is for WordPiece only; SentencePiece always separates words at whitespace",
    )
    _require(
        bool(config.phases), "config.phases", config.phases, "needs at least one phase"
    )
    _require(
        data.num_shards % data.num_streams == 0,
        "config.data.num_streams",
        data.num_streams,
        f"must divide num_shards={data.num_shards}",
    )
    for i, phase in enumerate(config.phases):
        _validate_phase(phase, f"config.phases[{i}]", config)
    _validate_schedule(config)


def _validate_schedule(config: ExperimentConfig) -> None:
    optimizer, num_steps = config.optimizer, config.schedule_steps
    # A linear schedule without steps after the warmup only ends early; a cosine needs
    # such steps.
    _require(
        optimizer.schedule != "cosine" or optimizer.warmup_steps < num_steps,
        "config.optimizer.warmup_steps",
        optimizer.warmup_steps,
        f"must be below the {num_steps} steps of the schedule",
    )


def _validate_source_weights(data: DataConfig) -> None:
    key, weights = "config.data.source_weights", data.source_weights
    _require(
        len(weights) in (0, len(data.sources)),
        key,
        weights,
        f"must be empty or have one weight for each of the {len(data.sources)} sources",
    )
    _require(
        all(weight > 0 for weight in weights),
        key,
        weights,
        "must be above 0; remove a source that should not be used",
    )


def _validate_phase(phase: PhaseConfig, path: str, config: ExperimentConfig) -> None:
    for field in dataclasses.fields(phase):
        value = getattr(phase, field.name)
        _require(value >= 1, f"{path}.{field.name}", value, "must be at least 1")
    _require(
        phase.sequence_length <= config.model.max_position_embeddings,
        f"{path}.sequence_length",
        phase.sequence_length,
        "must be at most config.model.max_position_embeddings="
        f"{config.model.max_position_embeddings}",
    )
    # [CLS] A [SEP] B [SEP], and the target length of a short pair is at least 2.
    _require(
        phase.sequence_length >= 8,
        f"{path}.sequence_length",
        phase.sequence_length,
        "must be at least 8 to hold a pair of segments",
    )
    _require(
        phase.max_predictions <= phase.sequence_length,
        f"{path}.max_predictions",
        phase.max_predictions,
        f"must be at most sequence_length={phase.sequence_length}",
    )
    _require(
        phase.max_sequences_per_row <= MAX_SEQUENCES_PER_ROW,
        f"{path}.max_sequences_per_row",
        phase.max_sequences_per_row,
        f"must be at most {MAX_SEQUENCES_PER_ROW}",
    )
    _validate_packed_predictions(phase, path, config)
    streams = config.data.num_streams
    # distributed/mesh.py checks the division over devices. The sizes suggested here
    # pass that check, as far as the config gives the number of devices.
    sizes = (config.mesh.data, config.mesh.fsdp, config.accumulation_steps)
    rows = math.lcm(streams, math.prod(size for size in sizes if size > 0))
    _require(
        phase.global_batch_size % streams == 0,
        f"{path}.global_batch_size",
        phase.global_batch_size,
        f"must be a multiple of config.data.num_streams={streams}; try"
        f" {multiples_around(phase.global_batch_size, rows)}",
    )


def multiples_around(size: int, divisor: int) -> str:
    """Returns the nearest positive multiples of `divisor`, for example "12 or 24"."""
    below = size // divisor * divisor
    return " or ".join(str(n) for n in (below, below + divisor) if n)


def _validate_packed_predictions(
    phase: PhaseConfig, path: str, config: ExperimentConfig
) -> None:
    """Checks that max_predictions holds the masks of all pairs packed in a row."""
    if phase.max_sequences_per_row == 1:
        return
    # A pair of n tokens has max(1, round(n * p)) masks. That is at most 0.5 over n * p,
    # except for the shortest pairs: [CLS] a [SEP] b [SEP] or [CLS] a [SEP].
    shortest = 5 if config.data.next_sentence else 3
    rate = max(config.data.masked_lm_prob, config.eval.masked_lm_prob)
    over = max(0.5, 1.0 - shortest * rate)
    share = phase.sequence_length * rate
    needed = int(share + over * phase.max_sequences_per_row)
    _require(
        phase.max_predictions >= needed,
        f"{path}.max_predictions",
        phase.max_predictions,
        f"cannot hold the masks of max_sequences_per_row={phase.max_sequences_per_row}"
        f" pairs; try {needed}",
    )


def _validate_ranges(config: ExperimentConfig) -> None:
    probabilities = {
        "config.data.validation_fraction": config.data.validation_fraction,
        "config.data.short_seq_prob": config.data.short_seq_prob,
        "config.data.masked_lm_prob": config.data.masked_lm_prob,
        "config.eval.masked_lm_prob": config.eval.masked_lm_prob,
        "config.model.hidden_dropout_prob": config.model.hidden_dropout_prob,
        "config.model.attention_probs_dropout_prob": (
            config.model.attention_probs_dropout_prob
        ),
        "config.optimizer.beta1": config.optimizer.beta1,
        "config.optimizer.beta2": config.optimizer.beta2,
    }
    for key, value in probabilities.items():
        _require(0 <= value < 1, key, value, "must be at least 0 and below 1")
    rates = (config.data.mask_replace_prob, config.data.mask_random_prob)
    _require(
        min(rates) >= 0 and sum(rates) <= 1,
        "config.data (mask_replace_prob, mask_random_prob)",
        rates,
        "must not be negative, and their sum must not exceed 1",
    )
    at_least_one = {
        "config.accumulation_steps": config.accumulation_steps,
        "config.log_every_steps": config.log_every_steps,
        "config.data.num_shards": config.data.num_shards,
        "config.data.num_streams": config.data.num_streams,
        "config.data.mask_ngram_max": config.data.mask_ngram_max,
        "config.tokenizer.vocab_size": config.tokenizer.vocab_size,
        "config.checkpoint.every_steps": config.checkpoint.every_steps,
        "config.checkpoint.keep": config.checkpoint.keep,
        "config.guard.max_bad_steps": config.guard.max_bad_steps,
        "config.eval.every_steps": config.eval.every_steps,
        "config.eval.num_sequences": config.eval.num_sequences,
        "config.model.hidden_size": config.model.hidden_size,
        "config.model.num_hidden_layers": config.model.num_hidden_layers,
        "config.model.num_attention_heads": config.model.num_attention_heads,
        "config.model.intermediate_size": config.model.intermediate_size,
    }
    for key, value in at_least_one.items():
        _require(value >= 1, key, value, "must be at least 1")
    positive = {
        "config.optimizer.learning_rate": config.optimizer.learning_rate,
        "config.optimizer.epsilon": config.optimizer.epsilon,
        "config.optimizer.clip_norm": config.optimizer.clip_norm,
        "config.loss_weights.masked_lm": config.loss_weights.masked_lm,
        "config.model.layer_norm_eps": config.model.layer_norm_eps,
        "config.model.initializer_range": config.model.initializer_range,
    }
    for key, value in positive.items():
        _require(value > 0, key, value, "must be above 0")
    for key, value in (
        ("config.seed", config.seed),
        ("config.optimizer.warmup_steps", config.optimizer.warmup_steps),
        ("config.optimizer.weight_decay", config.optimizer.weight_decay),
        ("config.loss_weights.next_sentence", config.loss_weights.next_sentence),
        ("config.checkpoint.every_minutes", config.checkpoint.every_minutes),
        ("config.checkpoint.keep_every_steps", config.checkpoint.keep_every_steps),
        ("config.checkpoint.keep_best", config.checkpoint.keep_best),
        ("config.guard.max_rollbacks", config.guard.max_rollbacks),
        ("config.guard.replay_every_steps", config.guard.replay_every_steps),
    ):
        _require(value >= 0, key, value, "must not be negative")
    _require(config.seed < 2**63, "config.seed", config.seed, "must be below 2**63")
    _require(
        config.model.type_vocab_size >= 2,
        "config.model.type_vocab_size",
        config.model.type_vocab_size,
        "must be at least 2, one type for each segment of a pair",
    )
    validate_mesh(config.mesh)


def validate_mesh(mesh: MeshConfig) -> None:
    """Raises ConfigError if the axis sizes are invalid for any number of devices."""
    sizes = (mesh.data, mesh.fsdp, mesh.tensor)
    _require(
        all(n == -1 or n >= 1 for n in sizes) and sizes.count(-1) <= 1,
        "config.mesh (data, fsdp, tensor)",
        sizes,
        "sizes must be at least 1, or -1 for at most one of them",
    )


def _validate_choices(config: ExperimentConfig) -> None:
    choices = {
        "config.compute_dtype": (
            config.compute_dtype,
            ("auto", "float32", "bfloat16"),
        ),
        "config.gradient_reduction_dtype": (
            config.gradient_reduction_dtype,
            ("float32", "bfloat16"),
        ),
        "config.remat": (config.remat, REMAT),
        "config.data.invalid_utf8": (
            config.data.invalid_utf8,
            ("error", "replace", "skip"),
        ),
        "config.tokenizer.kind": (config.tokenizer.kind, TOKENIZER_KINDS),
        "config.optimizer.name": (config.optimizer.name, OPTIMIZERS),
        "config.optimizer.schedule": (config.optimizer.schedule, SCHEDULES),
        "config.optimizer.mu_dtype": (
            config.optimizer.mu_dtype,
            ("float32", "bfloat16"),
        ),
        "config.model.hidden_act": (config.model.hidden_act, ("gelu_new", "gelu")),
    }
    for key, (value, allowed) in choices.items():
        _require(value in allowed, key, value, f"must be one of {', '.join(allowed)}")


def _require(ok: bool, key: str, value: Any, problem: str) -> None:
    if not ok:
        raise errors.ConfigError(f"{key}={value!r} {problem}")
