"""Builds the config of a run, and checks conditions that involve several fields.

A config file returns an `ml_collections.ConfigDict`. `from_config_dict` converts it to
an `ExperimentConfig`, so that no other code handles a ConfigDict.
"""

import json
import math
from typing import Any

import ml_collections

from bert_jax.config.schema import ExperimentConfig, MeshConfig, PhaseConfig
from bert_jax.config.validation import build, complete, multiples_around, require
from bert_jax.errors import ConfigError


def from_config_dict(config: ml_collections.ConfigDict) -> ExperimentConfig:
    """Builds and validates the config of a pretraining run."""
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
    require(
        len(experiment.profile) != 1
        and sum(experiment.profile) <= experiment.num_steps + 1,
        "config.profile",
        experiment.profile,
        "must be (first step, number of steps) within the"
        f" {experiment.num_steps} steps of the run, for example (100,5), or empty",
    )
    return experiment


def from_json(text: str) -> ExperimentConfig:
    """Reads a config written by `ExperimentConfig.to_json`."""
    return from_saved(json.loads(text))


def from_saved(values: Any) -> ExperimentConfig:
    """Builds the config of a run that began before some keys were added."""
    complete(ExperimentConfig, values)
    return from_config_dict(values)


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
    require(
        not config.eval.probes or data.validation_fraction > 0,
        "config.eval.probes",
        config.eval.probes,
        "are scored at held-out evaluations, which need held-out documents; set it to"
        " (), or set config.data.validation_fraction above 0",
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


def check_mesh(mesh: MeshConfig) -> None:
    """Raises ConfigError if the axis sizes are invalid for any number of devices."""
    sizes = (mesh.data, mesh.fsdp, mesh.tensor)
    require(
        0 not in sizes and sizes.count(-1) <= 1,
        "config.mesh (data, fsdp, tensor)",
        sizes,
        "sizes must be at least 1, or -1 for at most one of them",
    )
