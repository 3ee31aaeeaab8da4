"""Compiles the phases of a run for a topology and reports memory, time and cost."""

import contextlib
import copy
import dataclasses
import importlib.metadata
import math
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
from bert_jax.preflight import checks, estimate
from bert_jax.preflight import compile as compile_lib
from bert_jax.preflight.compile import Trial
from bert_jax.training import step as step_lib

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
        """The memory of one device; 0 if its compiler does not reject programs."""
        return int(self.chip.hbm_gib * GIB) if self.chip else 0

    def compile(self, config: ExperimentConfig, phase_index: int) -> Trial:
        """Compiles the step of a phase."""
        sequences = compile_lib.micro_batch(config, self.mesh, phase_index)
        tokens = config.phases[phase_index].sequence_length
        with self.under_way.task(
            f"compiling {config.model.num_hidden_layers} layers,"
            f" {sequences} x {tokens} tokens per device"
            + (f", remat={config.remat}" if config.remat != "none" else "")
        ):
            return compile_lib.compile_step(config, self.mesh, phase_index)

    def map_phases(self, result: Callable[["Preflight", int], T]) -> list[T]:
        """Returns the result for each phase, computed in `num_at_once` threads.

        An exception in one phase is raised immediately. Other threads may be in a
        compilation then; `cli.run_and_leave` does not wait for them.

        Args:
          result: called with a copy of this object, for the progress of its thread, and
            with the phase's index.
        """

        def in_thread(phase_index: int) -> T:
            own = dataclasses.replace(self, under_way=copy.copy(self.under_way))
            with jax.set_mesh(self.mesh):  # the current mesh is local to a thread
                return result(own, phase_index)

        threads = ThreadPoolExecutor(self.num_at_once())
        try:
            phases = range(len(self.config.phases))
            futures = [threads.submit(in_thread, i) for i in phases]
            for done in as_completed(futures):
                done.result()
            return [each.result() for each in futures]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def num_at_once(self) -> int:
        """Returns the number of phases to compile concurrently; logs a memory limit."""
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
                f" {each / GIB:.1f} GiB of memory, {free / GIB:.1f} GiB are free"
            )
        return num

    def phase_report(self, phase_index: int, search: bool) -> dict[str, Any]:
        """Returns the report of a phase."""
        config, phase = self.config, self.config.phases[phase_index]
        self.begin_part(phase_index, "the config's batch")
        trial = self.compile(config, phase_index)
        sequences = compile_lib.micro_batch(config, self.mesh, phase_index)
        report = {
            "phase": phase_index,
            "num_steps": phase.num_steps,
            "sequence_length": phase.sequence_length,
            "global_batch_size": phase.global_batch_size,
            "accumulation_steps": config.accumulation_steps,
            "micro_batch": sequences,
            "fits": trial.fits if self.hbm_bytes else None,
            "fits_by": "compiler" if self.hbm_bytes else None,
            "compiled": trial.facts
            | ({"hbm_bytes": self.hbm_bytes} if self.hbm_bytes else {}),
            "model_flops": estimate.model_flops(config, phase_index),
            "estimated": self.estimate(trial, phase_index),
        }
        if not self.hbm_bytes or (trial.fits and not search):
            return report
        self.begin_part(phase_index, "the largest batch", compile_lib.MAX_SEARCH)
        largest, found = compile_lib.largest_batch(
            sequences,
            trial,
            self.hbm_bytes,
            lambda n: self.compile(
                compile_lib.with_micro_batch(config, self.mesh, phase_index, n),
                phase_index,
            ),
        )
        report["largest_micro_batch"] = largest
        if found:
            rows = found.config.phases[phase_index].global_batch_size
            found_report = self.short_report(found, phase_index)
            report["largest"] = {"global_batch_size": rows} | found_report
        at = trial if trial.fits else found
        if search and at:
            report["remat"] = self.remat_report(at, phase_index)
        return report

    def begin_part(self, phase_index: int, part: str, most: int = 1) -> None:
        """Starts the progress of a part of a phase, of at most `most` programs."""
        phase = f"phase {phase_index + 1} of {len(self.config.phases)}"
        self.under_way.begin(f"{phase}, {part}", most)

    def remat_report(self, own: Trial, phase_index: int) -> list[dict[str, Any]]:
        """Reports a batch under each kind of remat, the config's own first."""
        self.begin_part(phase_index, "remat", len(REMAT) - 1)
        rows = [{"remat": own.config.remat} | self.short_report(own, phase_index)]
        for name in REMAT:
            if name != own.config.remat:
                other = dataclasses.replace(own.config, remat=name)
                trial = self.compile(other, phase_index)
                rows.append({"remat": name} | self.short_report(trial, phase_index))
        return rows

    def short_report(self, trial: Trial, phase_index: int) -> dict[str, Any]:
        return {
            "fits": trial.fits,
            "total_bytes": trial.total_bytes,
            "estimated": self.estimate(trial, phase_index),
        }

    def estimate(self, trial: Trial, phase_index: int) -> dict[str, Any] | None:
        """Estimates the time of a step; returns None if there is no estimate."""
        if not trial.program or not self.chip:
            return None
        return estimate.estimate(
            trial.program, trial.config, phase_index, self.chip, self.price
        )

    def remedy(self, largest: list[int]) -> dict[str, Any] | None:
        """Finds accumulation_steps with which all phases fit, and compiles them.

        Args:
          largest: a number of sequences per device and microbatch that fits, by phase.

        Returns:
          The flag, and the estimates of the phases; None if no number is enough.
        """
        divisor = mesh_lib.batch_divisor(self.mesh)
        rows = [phase.global_batch_size // divisor for phase in self.config.phases]
        for parts in range(1, math.gcd(*rows) + 1):
            flag = f"accumulation_steps={parts}"
            sizes = zip(rows, largest, strict=True)
            if any(n % parts or n // parts > most for n, most in sizes):
                continue
            self.under_way.begin(f"all phases with {flag}", 1)
            split = dataclasses.replace(self.config, accumulation_steps=parts)
            trials = dataclasses.replace(self, config=split).map_phases(
                lambda own, i: own.compile(own.config, i)
            )
            if all(trial.fits for trial in trials):
                phases = [self.estimate(trial, i) for i, trial in enumerate(trials)]
                return {"flag": f"--config.{flag}", "phases": phases}
        return None


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
    phases = flight.map_phases(lambda own, i: own.phase_report(i, search))
    fits = all(phase["fits"] for phase in phases) if flight.hbm_bytes else None
    # For a phase that fits and was not searched, only its own batch is known to fit.
    known = [each.get("largest_micro_batch", each["micro_batch"]) for each in phases]
    remedy = flight.remedy(known) if fits is False else None
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
    } | {
        name: sum(each[name] for each in estimates if each)
        if all(each and each[name] is not None for each in estimates)
        else None
        for name in ("hours", "cost")
    }
