"""What a compiled step is expected to take: seconds by operation class, MFU, cost.

An estimate throughout: the compiler's cycles at the chip's clock; collectives at the
data sheet's full rate and one after the other; what has no estimate at the time its
result takes to be written. Waiting, the input pipeline and failures are not in it.
"""

import dataclasses

import jax

from bert_jax.config import ExperimentConfig
from bert_jax.distributed.chips import Chip
from bert_jax.monitoring import throughput
from bert_jax.preflight.hlo import CompiledProgram


@dataclasses.dataclass(frozen=True)
class StepEstimate:
    cycles: dict[str, int]  # of one device, by class, as libtpu estimates them
    seconds: dict[str, float]  # the same, and of collectives and unestimated
    unestimated: int  # operations without an estimate, times a step

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())


def estimate(program: CompiledProgram, chip: Chip) -> StepEstimate | None:
    """Returns the estimate of a step, None where the compiler made none."""
    if not chip.flops_per_cycle or not any(program.cycles.values()):
        return None
    seconds = {name: n / chip.clock_hz for name, n in program.cycles.items()}
    send = chip.ici_bytes_per_s / 2  # half of it receives
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
    """Returns the rates, hours and cost of a phase whose every step is as estimated.

    Args:
      found: of the step.
      config: whose batch the step takes.
      phase_index: of config.phases.
      mesh: of the run.
      chip: of the mesh.
      price: of a chip and an hour, None if it is not known.
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
    """Returns the FLOPs of a step over all devices, as `metrics` counts them."""
    phase = config.phases[phase_index]
    return phase.global_batch_size * throughput.train_flops_per_sequence(
        config.model, config.tokenizer.vocab_size, phase
    )
