"""Estimates the time of a compiled step by operation class, its MFU and its cost.

Operations take the compiler's estimated cycles at the chip's clock. Collectives run one
after another at the full rate of the data sheet. An operation without an estimate takes
as long as writing its result. Waiting, the input pipeline and failures are not
included.
"""

import dataclasses

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.distributed.chips import Chip
from bert_jax.monitoring import throughput
from bert_jax.preflight.hlo import CompiledProgram


@dataclasses.dataclass(frozen=True)
class StepEstimate:
    """Estimated cycles and seconds of one step on one device.

    Attributes:
      cycles: cycles by operation class, estimated by libtpu.
      seconds: the same in seconds, and those of "collectives" and "unestimated".
      unestimated: number of executed operations without an estimate.
    """

    cycles: dict[str, int]
    seconds: dict[str, float]
    unestimated: int

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())


def estimate(program: CompiledProgram, chip: Chip) -> StepEstimate | None:
    """Estimates a step; returns None if the compiler or the chip has no estimates."""
    if not chip.flops_per_cycle or not any(program.cycles.values()):
        return None
    seconds = {name: n / chip.clock_hz for name, n in program.cycles.items()}
    send = chip.ici_bytes_per_s / 2  # the rate is the sum of both directions
    seconds["collectives"] = sum(c.seconds(send) for c in program.collectives)
    seconds["unestimated"] = sum(
        times * instruction.num_bytes / chip.hbm_bytes_per_s
        for instruction, times in program.unestimated
    )
    return StepEstimate(
        program.cycles, seconds, sum(times for _, times in program.unestimated)
    )


def of_phase(
    found: StepEstimate,
    config: ExperimentConfig,
    phase_index: int,
    mesh: jax.sharding.Mesh,
    chip: Chip,
    price: float | None,
) -> dict[str, float | None]:
    """Returns the rates, hours and cost of a phase from the estimate of its step.

    Args:
      found: estimate of a step.
      config: config of the run, with the batch that was estimated.
      phase_index: index in config.phases.
      mesh: mesh of the run.
      chip: chip of the mesh.
      price: price of one chip for one hour; None if unknown.
    """
    phase = config.phases[phase_index]
    flops = model_flops(config, phase_index)
    rate = phase.global_batch_size / found.step_seconds
    chips = mesh.size / chip.devices_per_chip
    hours = phase.num_steps * found.step_seconds / 3600
    return {
        "step_seconds": found.step_seconds,
        "sequences_per_second": rate,
        "sequences_per_second_per_chip": rate / chips,
        "mfu": flops / found.step_seconds / (mesh.size * chip.peak_flops),
        "hours": hours,
        "cost": None if price is None else hours * chips * price,
    }


def model_flops(config: ExperimentConfig, phase_index: int) -> float:
    """Returns the model FLOPs of a step over all devices, see throughput.py."""
    phase = config.phases[phase_index]
    return phase.global_batch_size * throughput.train_flops_per_sequence(
        config.model, config.tokenizer.vocab_size, phase
    )
