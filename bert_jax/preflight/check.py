"""Compiles the phases of a run for a slice and measures what they need."""

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
from bert_jax.monitoring.progress import UnderWay
from bert_jax.preflight import aot, checks, estimate, quantities
from bert_jax.preflight.aot import Trial
from bert_jax.training import step as step_lib

# Pieces of work that tell what the other kinds of remat do: of the own one a step of
# few layers, of each other one that and its memory.
REMAT_PIECES = 1 + 2 * (len(REMAT) - 1)
PLAN = (
    "of each phase: few layers, whose memory tells of the rest; the"
    f" config's batch; the largest batch, some {aot.MOST_TRIES} programs of all"
    " layers or fewer, each as long as the config's; remat, by few layers"
)
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Preflight:
    """One config on one mesh."""

    config: ExperimentConfig
    mesh: jax.sharding.Mesh
    chip: Chip | None  # None where there is no data sheet
    price: float | None  # of a chip and an hour
    under_way: UnderWay = dataclasses.field(
        default_factory=lambda: UnderWay("preflight"), compare=False
    )

    @property
    def hbm_bytes(self) -> int:
        """What libtpu gives a program on one device; 0 for other compilers.

        It alone refuses what does not fit, with numbers.
        """
        return int(self.chip.hbm_gib * GIB) if self.chip else 0

    def compile(self, config: ExperimentConfig, phase_index: int) -> Trial:
        phase = config.phases[phase_index]
        sequences = aot.micro_batch(config, self.mesh, phase_index)
        with self.under_way.doing(
            f"compiling {config.model.num_hidden_layers} layers,"
            f" {sequences} x {phase.sequence_length} tokens a device"
            + (f", remat={config.remat}" if config.remat != "none" else "")
        ):
            return aot.compile_step(config, self.mesh, phase_index)

    def early(self, config: ExperimentConfig, phase_index: int) -> aot.EarlyMemory:
        few = " and ".join(map(str, aot.FEW_LAYERS))
        with self.under_way.doing(f"memory of {few} layers, remat={config.remat}"):
            return aot.early_memory(config, self.mesh, phase_index, self.hbm_bytes)

    def of_phases(self, result: Callable[["Preflight", int], T]) -> list[T]:
        """Returns a result of each phase, side by side as far as `num_at_once` says.

        What one raises is raised at once; the others' threads may be in a compilation,
        which `cli.run_and_leave` does not wait for.

        Args:
          result: called in a thread, with a copy that tells of its own work, and the
            phase's index.
        """

        def in_thread(phase_index: int) -> T:
            under_way = copy.copy(self.under_way)
            with jax.set_mesh(self.mesh):  # of this thread
                own = dataclasses.replace(self, under_way=under_way)
                return result(own, phase_index)

        phases = range(len(self.config.phases))
        threads = ThreadPoolExecutor(self.num_at_once())
        try:
            begun = [threads.submit(in_thread, i) for i in phases]
            for done in as_completed(begun):
                done.result()
            return [each.result() for each in begun]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def num_at_once(self) -> int:
        """Returns how many phases this machine compiles at a time, and says if few.

        The most of libtpu's work on a program is done by one thread.
        """
        most = min(len(self.config.phases), os.cpu_count() or 1)
        free = host_memory.available_bytes()
        if not self.chip or not self.chip.gib_to_compile or free is None:
            return most
        layers = self.config.model.num_hidden_layers / chips.LAYERS_TO_COMPILE
        each = self.chip.gib_to_compile * GIB * layers
        num = max(min(most, int(free / each)), 1)
        if num < most or free < each:
            self.under_way.say(
                f"compiling {num} of {most} phases at a time: each may take"
                f" {quantities.memory(each)} of this machine's memory, of which"
                f" {quantities.memory(free)} are free"
            )
        return num

    def begin(self, phase_index: int, part: str, most: int = 1) -> None:
        """Says of which part what follows is, which has `most` programs or fewer."""
        phase = f"phase {phase_index + 1} of {len(self.config.phases)}"
        self.under_way.begin(f"{phase}, {part}", most)

    def phase(self, phase_index: int, search: bool) -> dict[str, Any]:
        """Returns the report of a phase."""
        phase = self.config.phases[phase_index]
        sequences = aot.micro_batch(self.config, self.mesh, phase_index)
        early = None
        # Without a search it is worth its time only where a batch may be far too large.
        if self.hbm_bytes and (search or sequences > aot.FEW_ROWS):
            early = self.few_layers(phase_index)
        trial = self.own(phase_index, early)
        told_by = "compiler" if trial.compiled else "few_layers"
        report = {
            "phase": phase_index,
            "num_steps": phase.num_steps,
            "sequence_length": phase.sequence_length,
            "global_batch_size": phase.global_batch_size,
            "accumulation_steps": self.config.accumulation_steps,
            "micro_batch": sequences,
            "fits": trial.fits if self.hbm_bytes else None,
            "fits_by": told_by if self.hbm_bytes else None,
            "compiled": self.compiled(trial) if trial.compiled else None,
            "from_few_layers": None if trial.compiled else self.uncompiled(trial),
            "model_flops": estimate.model_flops(self.config, phase_index),
            "estimated": self.estimated(trial, phase_index),
        }
        if self.hbm_bytes and (search or not trial.fits):
            early = early or self.few_layers(phase_index)
            report |= self.searched(trial, early, phase_index, remats=search)
        return report

    def few_layers(self, phase_index: int) -> aot.EarlyMemory:
        self.begin(phase_index, "few layers")
        return self.early(self.config, phase_index)

    def own(self, phase_index: int, early: aot.EarlyMemory | None) -> Trial:
        """Returns what came of the config's own batch, compiled if it may fit."""
        self.begin(phase_index, "the config's batch")
        # Of a model that has few layers itself the compiler tells as soon, and better.
        if early and self.config.model.num_hidden_layers > aot.FEW_LAYERS[-1]:
            sequences = aot.micro_batch(self.config, self.mesh, phase_index)
            needed = early.of(sequences)
            if needed > aot.FAR_TOO_LARGE * self.hbm_bytes:
                return aot.uncompiled(self.config, self.mesh, phase_index, needed)
        return self.compile(self.config, phase_index)

    def uncompiled(self, trial: Trial) -> dict[str, Any]:
        """Returns what is known of a step of which few layers told enough."""
        return {
            "layers": list(aot.FEW_LAYERS),
            "hbm_bytes": self.hbm_bytes,
            "arguments": trial.arguments,
            "needed_bytes": trial.needed_bytes,
        }

    def compiled(self, trial: Trial) -> dict[str, Any]:
        """Returns the facts of a compiled program, of one device."""
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

    def estimated(self, trial: Trial, phase_index: int) -> dict[str, Any] | None:
        """Returns what a fitting step is expected to take, None if nobody knows."""
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

    def searched(
        self,
        trial: Trial,
        early: aot.EarlyMemory,
        phase_index: int,
        *,
        remats: bool,
    ) -> dict[str, Any]:
        """Returns the largest micro-batch, compiled, and what remat would change."""
        self.begin(phase_index, "the largest batch", aot.MOST_TRIES)
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
            "estimated": self.estimated(largest, phase_index),
        }
        if remats:
            self.begin(phase_index, "remat", REMAT_PIECES)
            at = trial if trial.fits else largest
            found["remat"] = self.remats(at, sequences, early, phase_index)
        return found

    def remats(
        self, at: Trial, largest: int, early: aot.EarlyMemory, phase_index: int
    ) -> list[dict[str, Any]]:
        """Returns what each remat would do to a fitting step, from few layers.

        Args:
          at: the step.
          largest: the micro-batch that just fits.
          early: memory under the config's own remat.
          phase_index: of config.phases.
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
            its = self.early(other, phase_index)
            a_layer, cycles = self.layer_cycles(other, phase_index), None
            if own is not None and a_layer is not None:
                layers = self.config.model.num_hidden_layers
                cycles = rows[0]["cycles"] + (layers - 1) * (a_layer - own)
            rows.append(
                {
                    "remat": name,
                    "total_bytes": its.of(sequences) + beyond_early,
                    "largest_micro_batch": its.largest(early.of(largest)),
                    "cycles": cycles,
                }
            )
        return rows

    def layer_cycles(self, config: ExperimentConfig, phase_index: int) -> float | None:
        """Returns the cycles of few layers' step, for each of them but the last.

        The last one computes few positions; only differences are of use. None where
        that many layers do not fit.
        """
        few = aot.FEW_LAYERS[-1]
        config = aot.changed(config, self.mesh, phase_index, layers=few)
        program = self.compile(config, phase_index).program
        return sum(program.cycles.values()) / (few - 1) if program else None


def accumulation_remedy(
    flight: Preflight, phases: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Returns the flag with which all phases fit, each compiled with it; None: none."""
    config, mesh = flight.config, flight.mesh
    # A phase that fits may not have been searched; then its own batch is known.
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
        tried = dataclasses.replace(flight, config=split).of_phases(
            lambda own, i: own.compile(own.config, i)
        )
        if all(trial.fits for trial in tried):
            return {
                "flag": f"--config.{flag}",
                "phases": [flight.estimated(trial, i) for i, trial in enumerate(tried)],
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
    """Returns the report, as it is printed by --json.

    Args:
      config: of the run.
      topology: of TPUs, or "local"; see `chips.devices`.
      workdir: that must be writable; None for no check.
      price: of a chip and an hour, in any currency.
      search: whether to find the largest batch and what remat buys.

    Raises:
      ConfigError: when config, topology, corpus or workdir do not go together.
    """
    devices = chips.devices(topology)
    mesh = mesh_lib.make_mesh(config.mesh, devices)
    mesh_lib.check_mesh(config, mesh)
    found = checks.check(config, workdir)
    jax.set_mesh(mesh)
    chip = chips.chip_of(devices[0].device_kind)
    flight = Preflight(config, mesh, chip, price)
    if search and flight.hbm_bytes:
        flight.under_way.say(PLAN)
    phases = flight.of_phases(lambda own, i: own.phase(i, search))
    fits = all(phase["fits"] for phase in phases) if flight.hbm_bytes else None
    remedy = accumulation_remedy(flight, phases) if fits is False else None
    taken = remedy["phases"] if remedy else [each["estimated"] for each in phases]
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
        "hours": _sum(taken, "hours"),
        "cost": _sum(taken, "cost"),
    }


def _sum(estimates: list[dict[str, Any] | None], name: str) -> float | None:
    """Returns the sum over the phases, None where one is not known."""
    values = [each[name] if each else None for each in estimates]
    return None if None in values else sum(value for value in values if value)
