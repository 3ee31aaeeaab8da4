"""Builds the config of a run, and checks conditions that involve several fields.

A config file returns an `ml_collections.ConfigDict`. `from_config_dict` converts it to
an `ExperimentConfig`, so that no other code handles a ConfigDict.
"""

import math
import operator
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
    _check("config", experiment, _conditions(experiment))
    check_mesh(experiment.mesh)
    for i, phase in enumerate(experiment.phases):
        _check(f"config.phases[{i}]", phase, _phase_conditions(phase, experiment))
    _check("config", experiment, _schedule_conditions(experiment))
    return experiment


def from_saved(values: Any) -> ExperimentConfig:
    """Builds the config of a run that began before some keys were added."""
    complete(ExperimentConfig, values)
    return from_config_dict(values)


# ------------------------------------------------- conditions: (holds, key, problem)


def _check(path: str, section: Any, conditions: list[tuple[bool, str, str]]) -> None:
    for holds, key, problem in conditions:
        require(holds, f"{path}.{key}", operator.attrgetter(key)(section), problem)


def _conditions(config: ExperimentConfig) -> list[tuple[bool, str, str]]:
    model, data = config.model, config.data
    require(
        data.mask_replace_prob + data.mask_random_prob <= 1,
        "config.data (mask_replace_prob, mask_random_prob)",
        (data.mask_replace_prob, data.mask_random_prob),
        "must have a sum of at most 1",
    )
    has_held_out = data.validation_fraction > 0
    return [
        (
            model.hidden_size % model.num_attention_heads == 0,
            "model.hidden_size",
            f"must be a multiple of num_attention_heads={model.num_attention_heads}",
        ),
        (
            model.type_vocab_size >= 2,
            "model.type_vocab_size",
            "must be at least 2, one type for each segment of a pair",
        ),
        (
            data.max_document_bytes >= data.max_line_bytes,
            "data.max_document_bytes",
            f"must be at least max_line_bytes={data.max_line_bytes}",
        ),
        (
            len(data.source_weights) in (0, len(data.sources)),
            "data.source_weights",
            "must be empty or have one weight for each of the"
            f" {len(data.sources)} sources",
        ),
        (
            data.num_shards % data.num_streams == 0,
            "data.num_streams",
            f"must divide num_shards={data.num_shards}",
        ),
        (
            config.tokenizer.kind == "wordpiece" or not data.word_segmented,
            "data.word_segmented",
            "is for WordPiece only; SentencePiece always separates words at whitespace",
        ),
        (
            config.checkpoint.keep_best == 0 or has_held_out,
            "checkpoint.keep_best",
            "needs held-out documents; set it to 0, or set"
            " config.data.validation_fraction above 0",
        ),
        (
            not config.eval.probes or has_held_out,
            "eval.probes",
            "are scored at held-out evaluations, which need held-out documents; set it"
            " to (), or set config.data.validation_fraction above 0",
        ),
    ]


def _phase_conditions(
    phase: PhaseConfig, config: ExperimentConfig
) -> list[tuple[bool, str, str]]:
    streams, most = config.data.num_streams, config.model.max_position_embeddings
    # distributed/mesh.py checks the division over devices. The sizes suggested here
    # pass that check, as far as the config gives the number of devices.
    sizes = (config.mesh.data, config.mesh.fsdp, config.accumulation_steps)
    rows = math.lcm(streams, math.prod(size for size in sizes if size > 0))
    needed = _predictions_of_packed_row(phase, config)
    final = config.data.final_masked_lm_prob
    num_final = round(final * phase.sequence_length)
    return [
        (
            phase.sequence_length <= most,
            "sequence_length",
            f"must be at most config.model.max_position_embeddings={most}",
        ),
        (
            phase.max_predictions <= phase.sequence_length,
            "max_predictions",
            f"must be at most sequence_length={phase.sequence_length}",
        ),
        (
            phase.global_batch_size % streams == 0,
            "global_batch_size",
            f"must be a multiple of config.data.num_streams={streams}; try"
            f" {multiples_around(phase.global_batch_size, rows)}",
        ),
        (
            phase.max_sequences_per_row == 1 or phase.max_predictions >= needed,
            "max_predictions",
            "cannot hold the masks of max_sequences_per_row="
            f"{phase.max_sequences_per_row} pairs; try {needed}",
        ),
        (
            final <= config.data.masked_lm_prob or phase.max_predictions >= num_final,
            "max_predictions",
            f"cannot hold the masks of config.data.final_masked_lm_prob={final}; try"
            f" {num_final}",
        ),
    ]


def _predictions_of_packed_row(phase: PhaseConfig, config: ExperimentConfig) -> int:
    """Returns the most masks of all pairs packed in a row."""
    # A pair of n tokens has max(1, round(n * p)) masks. That exceeds n * p by at most
    # 0.5, except for the shortest pairs: [CLS] a [SEP] b [SEP] or [CLS] a [SEP].
    shortest = 5 if config.data.next_sentence else 3
    data, held_out = config.data, config.eval
    rate = max(data.masked_lm_prob, data.final_masked_lm_prob, held_out.masked_lm_prob)
    over = max(0.5, 1.0 - shortest * rate)
    return int(phase.sequence_length * rate + over * phase.max_sequences_per_row)


def _schedule_conditions(config: ExperimentConfig) -> list[tuple[bool, str, str]]:
    optimizer, num_steps = config.optimizer, config.schedule_steps
    is_wsd = optimizer.schedule == "wsd"
    why = "needs a number of steps, so config.budget_hours=0; else set it to 0"
    least, most = 0, 0
    problem = "must be 0 with another schedule than 'wsd', or with config.budget_hours"
    if is_wsd and not config.budget_hours:
        least, most = 1, num_steps - optimizer.warmup_steps
        problem = f"must be from 1 to {most}; try a fifth of {num_steps} steps"
    return [
        (
            not config.budget_hours or (is_wsd and not optimizer.schedule_by_phase),
            "budget_hours",
            "needs config.optimizer.schedule='wsd' and schedule_by_phase=False",
        ),
        *(
            (not (config.budget_hours and operator.attrgetter(key)(config)), key, why)
            for key in ("data.final_masked_lm_prob", "optimizer.average_steps")
        ),
        (
            optimizer.average_steps <= config.num_steps,
            "optimizer.average_steps",
            f"must be at most the {config.num_steps} steps of the run",
        ),
        (
            max(config.checkpoint.keep_steps, default=0) <= config.num_steps,
            "checkpoint.keep_steps",
            f"must be at most the {config.num_steps} steps of the run",
        ),
        (  # A linear schedule may end during the warmup; others need steps after it.
            not (is_wsd or optimizer.schedule == "cosine")
            or optimizer.warmup_steps < num_steps,
            "optimizer.warmup_steps",
            f"must be below the {num_steps} steps of the schedule",
        ),
        (least <= optimizer.decay_steps <= most, "optimizer.decay_steps", problem),
        (
            len(config.profile) != 1 and sum(config.profile) <= config.num_steps + 1,
            "profile",
            "must be (first step, number of steps) within the"
            f" {config.num_steps} steps of the run, for example (100,5), or empty",
        ),
    ]


def check_mesh(mesh: MeshConfig) -> None:
    """Raises ConfigError if the axis sizes are invalid for any number of devices."""
    sizes = (mesh.data, mesh.fsdp, mesh.tensor)
    require(
        0 not in sizes and sizes.count(-1) <= 1,
        "config.mesh (data, fsdp, tensor)",
        sizes,
        "sizes must be at least 1, or -1 for at most one of them",
    )
