"""Describes a run before its first step, and summarizes it after its last one."""

import dataclasses
from typing import Any

import jax

from bert_jax import BEGAN, clock, storage
from bert_jax import config as config_lib
from bert_jax.checkpoint import integrity
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import multihost
from bert_jax.monitoring import progress, terminal, throughput, writer
from bert_jax.training import compilation
from bert_jax.training.evaluation import HeldOut, unigram_entropy
from bert_jax.training.step import TrainState, compute_dtype


def numbers(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, corpus: Corpus, state: TrainState
) -> dict[str, Any]:
    """Returns the sizes of the model, the devices and the data by name."""
    return {
        "num_parameters": sum(x.size for x in jax.tree.leaves(state.params)),
        "compute_dtype": str(compute_dtype(config.compute_dtype)),
        "num_devices": jax.device_count(),
        "device_kind": jax.devices()[0].device_kind,
        "num_processes": jax.process_count(),
        "mesh": " x ".join(f"{axis} {mesh.shape[axis]}" for axis in mesh_lib.AXES),
        "num_tokens": sum(shard.num_tokens for shard in corpus.shards["train"]),
    } | {
        f"flops_per_step.{i}": throughput.step_flops(config, phase)
        for i, phase in enumerate(config.phases)
    }


def describe(
    config: ExperimentConfig,
    sizes: dict[str, Any],
    workdir: str,
    first_step: int,
    last_step: int,
) -> str:
    """Describes the model, the devices, the data (`numbers`) and the phases."""
    model, num_processes = config.model, sizes["num_processes"]
    phases = ", ".join(
        f"{phase.num_steps:,} steps of {phase.global_batch_size:,} x"
        f" {phase.sequence_length}"
        for phase in config.phases
    )
    processes = f" in {num_processes} processes" if num_processes > 1 else ""
    start = "from random weights"
    if first_step == last_step:
        start = "already complete"
    elif config.branch_from.endswith(f"@{first_step}"):
        start = f"branching off {config.branch_from}"
    elif first_step:
        start = f"resuming at step {first_step:,}"
    elif config.init_from:
        start = f"from the weights in {config.init_from} with a new optimizer"
    if config.budget_hours:
        limit = progress.format_duration(3600 * config.budget_hours)
        phases = f"at most {limit}, {phases}"
    options = [f", {k}={v}" for k, v in compilation.compiler_options().items()]
    return "\n".join(
        [
            f"model:  {sizes['num_parameters']:,} parameters,"
            f" {model.num_hidden_layers} layers of {model.hidden_size},"
            f" {sizes['compute_dtype']}",
            f"device: {sizes['num_devices']} x {sizes['device_kind']}{processes},"
            f" mesh {sizes['mesh']}{''.join(options)}",
            f"data:   {sizes['num_tokens']:,} tokens"
            f"{' streamed, indexed' if config.data.stream else ''}"
            f" in {config.data.corpus_dir}",
            f"train:  {phases} tokens, {start}, workdir {workdir}",
            *_capped_masks(config),
        ]
    )


def _capped_masks(config: ExperimentConfig) -> list[str]:
    """Returns a line for each phase whose longest rows have fewer masks than asked."""
    rate = max(config.data.masked_lm_prob, config.data.final_masked_lm_prob)
    return [
        f"masks:  config.phases[{i}].max_predictions={phase.max_predictions} allows"
        f" {phase.max_predictions / phase.sequence_length:.1%} of"
        f" {phase.sequence_length} tokens, below {rate:.1%}"
        for i, phase in enumerate(config.phases)
        if phase.max_predictions < round(rate * phase.sequence_length)
    ]


def tracked(
    config: ExperimentConfig, sizes: dict[str, Any], workdir: str
) -> dict[str, Any]:
    """Returns the config by key, and `numbers`, as trackers record them.

    MLflow's names have no brackets: phases[0].num_steps becomes phases.0.num_steps.
    """
    flat = config_lib.flatten(dataclasses.asdict(config))
    keys = {k.replace("[", ".").replace("]", ""): value for k, value in flat.items()}
    run = sizes | {"workdir": storage.absolute(workdir)}
    return keys | {f"run.{name}": value for name, value in run.items()}


def finish(workdir: str, num_steps: int, held_out: HeldOut) -> str:
    """Verifies the last checkpoint, plots the curves and returns a summary."""
    integrity.check(workdir, num_steps, "rerun the same command to resume from step ")
    lines, entropy = writer.read(workdir), unigram_entropy(held_out.corpus)
    terminal.plot_curves(workdir, lines, entropy)
    seconds, processes = clock() - BEGAN, multihost.num_processes()
    return terminal.summarize(workdir, num_steps, seconds, lines, entropy, processes)
