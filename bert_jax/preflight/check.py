"""Compiles the phases of a run for a topology and reports memory, time and cost."""

import dataclasses
import importlib.metadata
import importlib.util
import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from bert_jax.config import REMAT, ExperimentConfig
from bert_jax.distributed import chips
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed.chips import GIB, Chip
from bert_jax.monitoring import throughput
from bert_jax.monitoring.progress import TaskLog
from bert_jax.preflight import checks
from bert_jax.preflight import compile as compile_lib
from bert_jax.preflight.compile import Trial
from bert_jax.training import step as step_lib


@dataclasses.dataclass(frozen=True)
class Phase:
    """Compiles and estimates the step of one phase."""

    config: ExperimentConfig
    index: int  # in config.phases
    mesh: jax.sharding.Mesh
    chip: Chip | None  # None if the device has no data sheet
    price: float | None  # price of one chip for one hour
    log: TaskLog = dataclasses.field(default_factory=lambda: TaskLog("preflight"))

    @property
    def hbm_bytes(self) -> int:
        """Memory of one device, in bytes; 0 if it is unknown."""
        return int(self.chip.hbm_gib * GIB) if self.chip else 0

    def compile(self, config: ExperimentConfig) -> Trial:
        """Compiles the step of the phase with a changed config."""
        phase = config.phases[self.index]
        with self.log.task(
            f"compiling phase {self.index + 1} of {len(config.phases)}:"
            f" {phase.global_batch_size} x {phase.sequence_length} tokens,"
            f" accumulation_steps={config.accumulation_steps}, remat={config.remat}"
        ):
            return compile_lib.compile_step(config, self.mesh, self.index)

    def report(self, search: bool) -> dict[str, Any]:
        """Compiles the config's batch; searches if asked to or if it does not fit."""
        trial = self.compile(self.config)
        report = dataclasses.asdict(self.config.phases[self.index]) | {
            "phase": self.index,
            "accumulation_steps": self.config.accumulation_steps,
            "micro_batch": trial.sequences,
            "fits": trial.fits if self.hbm_bytes else None,
            "compiled": trial.facts | {"hbm_bytes": self.hbm_bytes},
            "model_flops": model_flops(self.config, self.index),
            "estimated": self.estimate(trial),
        }
        if self.hbm_bytes and (search or not trial.fits):
            report |= self.search(trial, compare_remat=search)
        return report

    def search(self, trial: Trial, *, compare_remat: bool) -> dict[str, Any]:
        """Reports the largest microbatch that fits, and the effect of remat."""
        rows = self.config.phases[self.index].global_batch_size // trial.sequences
        largest = compile_lib.largest_batch(
            trial,
            self.hbm_bytes,
            lambda n: self.compile(
                compile_lib.with_batch(self.config, self.index, n * rows)
            ),
        )
        if not largest:
            return {"largest_micro_batch": 0}
        found: dict[str, Any] = {
            "largest_micro_batch": largest.sequences,
            "largest": self.summary(largest),
        }
        if compare_remat:
            own = trial if trial.fits else largest
            others = [name for name in REMAT if name != own.config.remat]
            configs = [dataclasses.replace(own.config, remat=name) for name in others]
            trials = [own, *map(self.compile, configs)]
            found["remat"] = list(map(self.summary, trials))
        return found

    def summary(self, trial: Trial) -> dict[str, Any]:
        return {
            "global_batch_size": trial.config.phases[self.index].global_batch_size,
            "remat": trial.config.remat,
            "fits": trial.fits,
            "total_bytes": trial.total_bytes,
            "estimated": self.estimate(trial),
        }

    def estimate(self, trial: Trial) -> dict[str, Any] | None:
        """Estimates cycles and seconds of a step by class, rates, hours and cost.

        Operations take the compiler's estimated cycles at the chip's clock. Collectives
        run one after another at the full rate of the data sheet. Operations without an
        estimate take the time of writing their result at the full bandwidth, and Pallas
        kernels at least that of their FLOPs at the peak rate; for attention on v5e,
        this is three quarters of what the compiler's schedule takes. Waiting and the
        input pipeline are not included.

        Returns None if the program does not fit, or its compiler estimates no cycles.
        """
        program, chip = trial.program, self.chip
        if not program or not chip or not any(program.cycles.values()):
            return None
        seconds = {name: n / chip.clock_hz for name, n in program.cycles.items()}
        send = chip.ici_bytes_per_s / 2  # the rate is the sum of both directions
        seconds["collectives"] = sum(c.seconds(send) for c in program.collectives)
        for each, times in program.unestimated:
            written = each.num_bytes / chip.hbm_bytes_per_s
            computed = each.kernel_flops / chip.peak_flops
            seconds[program.kind(each)] += times * max(written, computed)
        phase, step = trial.config.phases[self.index], sum(seconds.values())
        rate, hours = phase.global_batch_size / step, phase.num_steps * step / 3600
        num_chips = program.num_devices / chip.devices_per_chip
        peak_flops = program.num_devices * chip.peak_flops
        return {
            "cycles": program.cycles,
            "seconds": seconds,
            "operations_without_estimate": sum(n for _, n in program.unestimated),
            "step_seconds": step,
            "sequences_per_second": rate,
            "sequences_per_second_per_chip": rate / num_chips,
            "mfu": model_flops(trial.config, self.index) / step / peak_flops,
            "hours": hours,
            "cost": None if self.price is None else hours * num_chips * self.price,
        }


def model_flops(config: ExperimentConfig, phase_index: int) -> float:
    """Returns the model FLOPs of a step over all devices, see throughput.py."""
    phase = config.phases[phase_index]
    return phase.global_batch_size * throughput.train_flops_per_sequence(
        config.model, config.tokenizer.vocab_size, phase
    )


def remedy(
    phases: list[Phase], largest: list[int], threads: ThreadPoolExecutor
) -> dict[str, Any] | None:
    """Finds the smallest accumulation_steps with which all phases fit, by compiling.

    `largest` is the number of sequences per microbatch that fit, for each phase.
    Returns the flag and the estimates of the phases; None if no number is enough.
    """
    config, divisor = phases[0].config, mesh_lib.batch_divisor(phases[0].mesh)
    rows = [phase.global_batch_size // divisor for phase in config.phases]
    for parts in range(1, math.gcd(*rows) + 1):
        sizes = zip(rows, largest, strict=True)
        if any(n % parts or n // parts > most for n, most in sizes):
            continue
        split = itertools.repeat(dataclasses.replace(config, accumulation_steps=parts))
        trials = list(threads.map(lambda p, c: p.compile(c), phases, split))
        if all(trial.fits for trial in trials):
            found = list(map(Phase.estimate, phases, trials))
            return {"flag": f"--config.accumulation_steps={parts}", "phases": found}
    return None


def preflight(
    config: ExperimentConfig,
    topology: str,
    price: float | None = None,
    search: bool = True,
) -> dict[str, Any]:
    """Returns the report that --json prints.

    Args:
      topology: TPU topology, or "local"; see `chips.devices`.
      search: whether to find the largest batch and compare the kinds of remat.
    """
    devices = chips.devices(topology)
    mesh = mesh_lib.make_mesh(config.mesh, devices)
    mesh_lib.check_mesh(config, mesh)
    jax.set_mesh(mesh)
    found = checks.check(config)
    chip = chips.chip_of(devices[0].device_kind)
    phases = [Phase(config, i, mesh, chip, price) for i in range(len(config.phases))]
    # A compilation takes gigabytes, so one at a time; Ctrl-C needs this thread.
    threads = ThreadPoolExecutor(1)
    reports = list(threads.map(lambda phase: phase.report(search), phases))
    fits = None if reports[0]["fits"] is None else all(r["fits"] for r in reports)
    libraries = filter(importlib.util.find_spec, ("jax", "jaxlib", "libtpu"))
    # For a phase that fits and was not searched, only its own batch is known to fit.
    known = [each.get("largest_micro_batch", each["micro_batch"]) for each in reports]
    found_remedy = remedy(phases, known, threads) if fits is False else None
    estimates = [each["estimated"] for each in reports]
    if found_remedy:
        estimates = found_remedy["phases"]
    hours = sum(each["hours"] for each in estimates) if all(estimates) else None
    num_chips = mesh.size // (chip.devices_per_chip if chip else 1)
    return {
        "fits": fits,
        "topology": topology,
        "device_kind": devices[0].device_kind,
        "devices": mesh.size,
        "chips": num_chips,
        "mesh": dict(mesh.shape),
        "shard_optimizer": config.mesh.shard_optimizer,
        "layers": config.model.num_hidden_layers,
        "hidden_size": config.model.hidden_size,
        "compute_dtype": str(step_lib.compute_dtype(config.compute_dtype)),
        "remat": config.remat,
        "versions": {name: importlib.metadata.version(name) for name in libraries},
        "checks": found,
        "phases": reports,
        "remedy": found_remedy,
        "hours": hours,
        "cost": hours * num_chips * price if hours and price is not None else None,
    }
