"""Estimates the time of a compiled step by operation class, its MFU and its cost.

Operations take the compiler's estimated cycles at the chip's clock. Collectives run one
after another at the full rate of the data sheet. Operations without an estimate take
the time of writing their result at the full bandwidth, and Pallas kernels at least that
of their FLOPs at the peak rate; for attention on v5e, this is three quarters of what
the compiler's schedule takes. Waiting and the input pipeline are not included.
"""

from typing import Any

from bert_jax.config import ExperimentConfig
from bert_jax.distributed.chips import Chip
from bert_jax.monitoring import throughput
from bert_jax.preflight.compile import Trial


def estimate(
    trial: Trial, phase_index: int, chip: Chip | None, price: float | None
) -> dict[str, Any] | None:
    """Estimates a phase: cycles and seconds of a step by class, rates, hours, cost.

    Returns None if the program does not fit, or its compiler estimates no cycles.
    """
    program, config = trial.program, trial.config
    if not program or not chip or not any(program.cycles.values()):
        return None
    seconds = {name: n / chip.clock_hz for name, n in program.cycles.items()}
    send = chip.ici_bytes_per_s / 2  # the rate is the sum of both directions
    seconds["collectives"] = sum(c.seconds(send) for c in program.collectives)
    for each, times in program.unestimated:
        written = each.num_bytes / chip.hbm_bytes_per_s
        computed = each.kernel_flops / chip.peak_flops
        seconds[program.kind(each)] += times * max(written, computed)
    phase, step = config.phases[phase_index], sum(seconds.values())
    rate, hours = phase.global_batch_size / step, phase.num_steps * step / 3600
    chips = program.num_devices / chip.devices_per_chip
    peak_flops = program.num_devices * chip.peak_flops
    return {
        "cycles": program.cycles,
        "seconds": seconds,
        "operations_without_estimate": sum(n for _, n in program.unestimated),
        "step_seconds": step,
        "sequences_per_second": rate,
        "sequences_per_second_per_chip": rate / chips,
        "mfu": model_flops(config, phase_index) / step / peak_flops,
        "hours": hours,
        "cost": None if price is None else hours * chips * price,
    }


def model_flops(config: ExperimentConfig, phase_index: int) -> float:
    """Returns the model FLOPs of a step over all devices, see throughput.py."""
    phase = config.phases[phase_index]
    return phase.global_batch_size * throughput.train_flops_per_sequence(
        config.model, config.tokenizer.vocab_size, phase
    )
