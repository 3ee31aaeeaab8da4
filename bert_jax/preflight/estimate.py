"""Estimates the time of a compiled step by operation class, its MFU and its cost.

Operations take the compiler's estimated cycles at the chip's clock. Collectives run one
after another at the full rate of the data sheet. An operation without an estimate takes
as long as writing its result. Waiting, the input pipeline and failures are not
included.
"""

from typing import Any

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.distributed.chips import Chip
from bert_jax.monitoring import throughput
from bert_jax.preflight.hlo import CompiledProgram


def step_seconds(program: CompiledProgram, chip: Chip) -> dict[str, float] | None:
    """Estimates the seconds of a step by operation class.

    Returns:
      Seconds of each class, of "collectives" and of "unestimated" operations; None if
      the compiler or the chip has no estimates.
    """
    if not chip.flops_per_cycle or not any(program.cycles.values()):
        return None
    seconds = {name: n / chip.clock_hz for name, n in program.cycles.items()}
    send = chip.ici_bytes_per_s / 2  # the rate is the sum of both directions
    seconds["collectives"] = sum(c.seconds(send) for c in program.collectives)
    seconds["unestimated"] = sum(
        times * instruction.num_bytes / chip.hbm_bytes_per_s
        for instruction, times in program.unestimated
    )
    return seconds


def phase_rates(
    step_seconds: float,
    config: ExperimentConfig,
    phase_index: int,
    mesh: jax.sharding.Mesh,
    chip: Chip,
    price: float | None,
) -> dict[str, Any]:
    """Returns the rates, hours and cost of a phase from the time of its step.

    Args:
      step_seconds: time of a step.
      config: config of the run, with the batch that was estimated.
      phase_index: index in config.phases.
      mesh: mesh of the run.
      chip: chip of the mesh.
      price: price of one chip for one hour; None if unknown.
    """
    phase = config.phases[phase_index]
    rate = phase.global_batch_size / step_seconds
    chips = mesh.size / chip.devices_per_chip
    hours = phase.num_steps * step_seconds / 3600
    flops_per_s = model_flops(config, phase_index) / step_seconds
    return {
        "step_seconds": step_seconds,
        "sequences_per_second": rate,
        "sequences_per_second_per_chip": rate / chips,
        "mfu": flops_per_s / (mesh.size * chip.peak_flops),
        "hours": hours,
        "cost": None if price is None else hours * chips * price,
    }


def model_flops(config: ExperimentConfig, phase_index: int) -> float:
    """Returns the model FLOPs of a step over all devices, see throughput.py."""
    phase = config.phases[phase_index]
    return phase.global_batch_size * throughput.train_flops_per_sequence(
        config.model, config.tokenizer.vocab_size, phase
    )
