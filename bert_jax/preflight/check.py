"""Compiles the phases of a run for a topology and reports memory, time and cost."""

import contextlib
import copy
import dataclasses
import importlib.metadata
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

import jax

from bert_jax.config import REMAT, ExperimentConfig
from bert_jax.distributed import chips, host_memory
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed.chips import GIB, Chip
from bert_jax.monitoring.progress import TaskLog
from bert_jax.preflight import aot, checks, estimate, quantities
from bert_jax.preflight.aot import Trial
from bert_jax.training import step as step_lib

# Number of tasks that compare the kinds of remat: a step of few layers for the config's
# own kind, and the same and an early memory estimate for each other kind.
REMAT_TASKS = 1 + 2 * (len(REMAT) - 1)
PLAN = (
    "for each phase: programs of few layers, to estimate memory; the config's batch;"
    f" the largest batch, in at most about {aot.MAX_TRIES} full programs, each taking"
    " as long to compile as the config's; other kinds of remat, with few layers"
)
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Preflight:
    """Compiles and estimates one config on one mesh."""

    config: ExperimentConfig
    mesh: jax.sharding.Mesh
    chip: Chip | None  # None if the device has no data sheet
    price: float | None  # price of one chip for one hour
    under_way: TaskLog = dataclasses.field(
        default_factory=lambda: TaskLog("preflight"), compare=False
    )

    @property
    def hbm_bytes(self) -> int:
        """The memory that libtpu gives a program on one device; 0 for other compilers.

        Other compilers do not reject programs that exceed the memory.
        """
        return int(self.chip.hbm_gib * GIB) if self.chip else 0

    def compile(self, config: ExperimentConfig, phase_index: int) -> Trial:
        """Compiles the step of a phase in full."""
        phase = config.phases[phase_index]
        sequences = aot.micro_batch(config, self.mesh, phase_index)
        with self.under_way.task(
            f"compiling {config.model.num_hidden_layers} layers,"
            f" {sequences} x {phase.sequence_length} tokens per device"
            + (f", remat={config.remat}" if config.remat != "none" else "")
        ):
            return aot.compile_step(config, self.mesh, phase_index)

    def early_memory(
        self, config: ExperimentConfig, phase_index: int
    ) -> aot.EarlyMemory:
        """Estimates memory from programs of few layers."""
        few = " and ".join(map(str, aot.FEW_LAYERS))
        with self.under_way.task(f"memory of {few} layers, remat={config.remat}"):
            return aot.early_memory(config, self.mesh, phase_index, self.hbm_bytes)

    def map_phases(self, result: Callable[["Preflight", int], T]) -> list[T]:
        """Returns the result for each phase, computed in `num_at_once` threads.

        An exception in one phase is raised immediately. Other threads may be in a
        compilation then; `cli.run_and_leave` does not wait for them.

        Args:
          result: called in a thread with a copy of this object, which reports its own
            progress, and with the phase's index.
        """

        def in_thread(phase_index: int) -> T:
            under_way = copy.copy(self.under_way)
            with jax.set_mesh(self.mesh):  # the current mesh is local to a thread
                own = dataclasses.replace(self, under_way=under_way)
                return result(own, phase_index)

        phases = range(len(self.config.phases))
        threads = ThreadPoolExecutor(self.num_at_once())
        try:
            futures = [threads.submit(in_thread, i) for i in phases]
            for done in as_completed(futures):
                done.result()
            return [each.result() for each in futures]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def num_at_once(self) -> int:
        """Returns the number of phases to compile concurrently.

        Logs the number if memory limits it. libtpu does most of its work on a program
        in one thread.
        """
        most = min(len(self.config.phases), os.cpu_count() or 1)
        free = host_memory.available_bytes()
        if not self.chip or not self.chip.gib_to_compile or free is None:
            return most
        layers = self.config.model.num_hidden_layers / chips.LAYERS_TO_COMPILE
        each = self.chip.gib_to_compile * GIB * layers
        num = max(min(most, int(free / each)), 1)
        if num < most or free < each:
            self.under_way.print(
                f"compiling {num} of {most} phases at a time: each may need"
                f" {quantities.memory(each)} of memory, and this machine has"
                f" {quantities.memory(free)} free"
            )
        return num

    def begin_part(self, phase_index: int, part: str, most: int = 1) -> None:
        """Starts the progress of a part of a phase, of at most `most` programs."""
        phase = f"phase {phase_index + 1} of {len(self.config.phases)}"
        self.under_way.begin(f"{phase}, {part}", most)

    def phase_report(self, phase_index: int, search: bool) -> dict[str, Any]:
        """Returns the report of a phase."""
        phase = self.config.phases[phase_index]
        sequences = aot.micro_batch(self.config, self.mesh, phase_index)
        early = None
        # Without a search, this pays off only if the batch may be far too large.
        if self.hbm_bytes and (search or sequences > aot.FEW_ROWS):
            early = self.few_layers(phase_index)
        trial = self.own_batch(phase_index, early)
        fits_by = "compiler" if trial.compiled else "few_layers"
        report = {
            "phase": phase_index,
            "num_steps": phase.num_steps,
            "sequence_length": phase.sequence_length,
            "global_batch_size": phase.global_batch_size,
            "accumulation_steps": self.config.accumulation_steps,
            "micro_batch": sequences,
            "fits": trial.fits if self.hbm_bytes else None,
            "fits_by": fits_by if self.hbm_bytes else None,
            "compiled": self.compiled_report(trial) if trial.compiled else None,
            "from_few_layers": None
            if trial.compiled
            else self.uncompiled_report(trial),
            "model_flops": estimate.model_flops(self.config, phase_index),
            "estimated": self.time_report(trial, phase_index),
        }
        if self.hbm_bytes and (search or not trial.fits):
            early = early or self.few_layers(phase_index)
            report |= self.search_report(trial, early, phase_index, remats=search)
        return report

    def few_layers(self, phase_index: int) -> aot.EarlyMemory:
        """Estimates memory under the config's own remat from few layers."""
        self.begin_part(phase_index, "few layers")
        return self.early_memory(self.config, phase_index)

    def own_batch(self, phase_index: int, early: aot.EarlyMemory | None) -> Trial:
        """Returns the trial of the config's own batch, compiled if it may fit."""
        self.begin_part(phase_index, "the config's batch")
        # Compiling a model that has few layers itself is as fast and more precise.
        if early and self.config.model.num_hidden_layers > aot.FEW_LAYERS[-1]:
            sequences = aot.micro_batch(self.config, self.mesh, phase_index)
            needed = early.of(sequences)
            if needed > aot.FAR_TOO_LARGE * self.hbm_bytes:
                return aot.uncompiled(self.config, self.mesh, phase_index, needed)
        return self.compile(self.config, phase_index)

    def uncompiled_report(self, trial: Trial) -> dict[str, Any]:
        """Reports a step that does not fit by an estimate from few layers."""
        return {
            "layers": list(aot.FEW_LAYERS),
            "hbm_bytes": self.hbm_bytes,
            "arguments": trial.arguments,
            "needed_bytes": trial.needed_bytes,
        }

    def compiled_report(self, trial: Trial) -> dict[str, Any]:
        """Reports the facts of a compiled program, for one device."""
        found: dict[str, Any] = {"seconds_to_compile": trial.seconds}
        if self.hbm_bytes:
            found["hbm_bytes"] = self.hbm_bytes
        found["arguments"] = trial.arguments
        if not trial.fits:
            needed = trial.needed_bytes
            return found | {"refusal": trial.refusal, "needed_bytes": needed}
        program = trial.program
        assert program is not None
        return found | {
            "memory": trial.memory,
            "flops_loops_once": trial.flops,
            "collectives": [
                {
                    "kind": each.kind,
                    "bytes": each.num_bytes,
                    "devices": each.group_size,
                    "times_a_step": each.times,
                }
                for each in program.collectives
            ],
        }

    def time_report(self, trial: Trial, phase_index: int) -> dict[str, Any] | None:
        """Estimates the time of a step; returns None if there is no estimate."""
        if not trial.program or not self.chip:
            return None
        found = estimate.estimate(trial.program, self.chip)
        if not found:
            return None
        return {
            "cycles": found.cycles,
            "seconds": found.seconds,
            "operations_without_estimate": found.unestimated,
        } | estimate.of_phase(
            found, trial.config, phase_index, self.mesh, self.chip, self.price
        )

    def search_report(
        self,
        trial: Trial,
        early: aot.EarlyMemory,
        phase_index: int,
        *,
        remats: bool,
    ) -> dict[str, Any]:
        """Reports the largest microbatch, compiled, and the effect of remat."""
        self.begin_part(phase_index, "the largest batch", aot.MAX_TRIES)
        sequences, largest = aot.largest_that_fits(
            trial,
            early,
            self.mesh,
            phase_index,
            self.hbm_bytes,
            lambda config: self.compile(config, phase_index),
        )
        found: dict[str, Any] = {"largest_micro_batch": sequences}
        if largest is None:
            return found
        found["largest"] = {
            "global_batch_size": largest.config.phases[phase_index].global_batch_size,
            "total_bytes": (largest.memory or {})["total"],
            "estimated": self.time_report(largest, phase_index),
        }
        if remats:
            self.begin_part(phase_index, "remat", REMAT_TASKS)
            at = trial if trial.fits else largest
            found["remat"] = self.remat_report(at, sequences, early, phase_index)
        return found

    def remat_report(
        self, at: Trial, largest: int, early: aot.EarlyMemory, phase_index: int
    ) -> list[dict[str, Any]]:
        """Estimates memory and cycles under each kind of remat, from few layers.

        Args:
          at: trial of a step that fits.
          largest: the largest microbatch that fits.
          early: early memory estimate for the config's own remat.
          phase_index: index in config.phases.
        """
        sequences = aot.micro_batch(at.config, self.mesh, phase_index)
        assert at.memory and at.program
        beyond_early = at.memory["total"] - early.of(sequences)
        own = self.layer_cycles(at.config, phase_index)
        rows = [
            {
                "remat": self.config.remat,
                "total_bytes": at.memory["total"],
                "largest_micro_batch": largest,
                "cycles": sum(at.program.cycles.values()),
            }
        ]
        for name in REMAT:
            if name == self.config.remat:
                continue
            other = dataclasses.replace(at.config, remat=name)
            other_early = self.early_memory(other, phase_index)
            per_layer, cycles = self.layer_cycles(other, phase_index), None
            if own is not None and per_layer is not None:
                layers = self.config.model.num_hidden_layers
                cycles = rows[0]["cycles"] + (layers - 1) * (per_layer - own)
            rows.append(
                {
                    "remat": name,
                    "total_bytes": other_early.of(sequences) + beyond_early,
                    "largest_micro_batch": other_early.largest(early.of(largest)),
                    "cycles": cycles,
                }
            )
        return rows

    def layer_cycles(self, config: ExperimentConfig, phase_index: int) -> float | None:
        """Returns the cycles of a step of few layers, per layer except the last.

        The last layer computes few positions. Only differences between these values are
        meaningful. The result is None if the few layers do not fit.
        """
        few = aot.FEW_LAYERS[-1]
        config = aot.changed(config, self.mesh, phase_index, layers=few)
        program = self.compile(config, phase_index).program
        return sum(program.cycles.values()) / (few - 1) if program else None


def accumulation_remedy(
    flight: Preflight, phases: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Finds accumulation_steps with which all phases fit, and compiles them.

    Returns:
      The flag, and the estimates of the phases; None if no number of steps is enough.
    """
    config, mesh = flight.config, flight.mesh
    # For a phase that fits and was not searched, only its own batch is known to fit.
    known_to_fit = [
        phase.get("largest_micro_batch", phase["micro_batch"]) for phase in phases
    ]
    parts = 1
    while True:
        found = [
            aot.accumulation_for(config, mesh, i, largest, parts)
            for i, largest in enumerate(known_to_fit)
        ]
        if any(n is None for n in found):
            return None
        most = max(n for n in found if n)
        if most > parts:
            parts = most
            continue
        flag = f"accumulation_steps={parts}"
        flight.under_way.begin(f"all phases with {flag}", 1)
        split = dataclasses.replace(config, accumulation_steps=parts)
        tried = dataclasses.replace(flight, config=split).map_phases(
            lambda own, i: own.compile(own.config, i)
        )
        if all(trial.fits for trial in tried):
            return {
                "flag": f"--config.{flag}",
                "phases": [
                    flight.time_report(trial, i) for i, trial in enumerate(tried)
                ],
            }
        parts += 1


def versions() -> dict[str, str]:
    found = {}
    for name in ("jax", "jaxlib", "libtpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def preflight(
    config: ExperimentConfig,
    topology: str,
    workdir: str | None = None,
    price: float | None = None,
    search: bool = True,
) -> dict[str, Any]:
    """Returns the report that --json prints.

    Args:
      config: config of the run.
      topology: TPU topology, or "local"; see `chips.devices`.
      workdir: directory to check for write permission; None to skip the check.
      price: price of one chip for one hour, in any currency.
      search: whether to find the largest batch and compare the kinds of remat.

    Raises:
      ConfigError: if the topology, corpus or workdir does not suit the config.
    """
    devices = chips.devices(topology)
    mesh = mesh_lib.make_mesh(config.mesh, devices)
    mesh_lib.check_mesh(config, mesh)
    found = checks.check(config, workdir)
    jax.set_mesh(mesh)
    chip = chips.chip_of(devices[0].device_kind)
    flight = Preflight(config, mesh, chip, price)
    if search and flight.hbm_bytes:
        flight.under_way.print(PLAN)
    phases = flight.map_phases(lambda own, i: own.phase_report(i, search))
    fits = all(phase["fits"] for phase in phases) if flight.hbm_bytes else None
    remedy = accumulation_remedy(flight, phases) if fits is False else None
    estimates = remedy["phases"] if remedy else [each["estimated"] for each in phases]
    return {
        "fits": fits,
        "topology": topology,
        "device_kind": devices[0].device_kind,
        "devices": mesh.size,
        "chips": mesh.size // (chip.devices_per_chip if chip else 1),
        "mesh": dict(mesh.shape),
        "shard_optimizer": config.mesh.shard_optimizer,
        "layers": config.model.num_hidden_layers,
        "hidden_size": config.model.hidden_size,
        "compute_dtype": str(step_lib.compute_dtype(config.compute_dtype)),
        "remat": config.remat,
        "versions": versions(),
        "checks": found,
        "phases": phases,
        "remedy": remedy,
        "hours": _sum(estimates, "hours"),
        "cost": _sum(estimates, "cost"),
    }


def _sum(estimates: list[dict[str, Any] | None], name: str) -> float | None:
    """Returns the sum over the phases; None if the value of any phase is unknown."""
    values = [each[name] if each else None for each in estimates]
    return None if None in values else sum(value for value in values if value)
