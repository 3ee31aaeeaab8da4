"""Checks a config, and compiles its phases for a topology: memory, time and cost."""

import dataclasses
import importlib.metadata
import importlib.util
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from bert_jax.config import REMAT, ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus import build
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.distributed import chips, sharding
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed.chips import GIB, Chip
from bert_jax.monitoring import throughput
from bert_jax.preflight import hlo
from bert_jax.training import compilation, optimizer
from bert_jax.training import step as step_lib


def preflight(
    config: ExperimentConfig,
    topology: str,
    price: float | None = None,
    search: bool = True,
) -> dict[str, Any]:
    """Returns the report that --json prints.

    The topology is that of `chips.devices`, and the price that of one chip for one
    hour. A search compares the kinds of remat.
    """
    devices = chips.devices(topology)
    mesh = mesh_lib.make_mesh(config.mesh, devices)
    mesh_lib.check(config, mesh)
    jax.set_mesh(mesh)
    checks = check_corpus(config)
    chip = chips.chip_of(devices[0].device_kind)
    # A compilation takes gigabytes, so one at a time; Ctrl-C needs this thread.
    phases = Phases(config, mesh, chip, price, ThreadPoolExecutor(1))
    trials = fitting = phases.compile(config)
    fits = all(trial.fits for trial in trials) if phases.hbm_bytes else None
    remedy = None
    if fits is False and (fitting := phases.divided()):
        parts = fitting[0].config.accumulation_steps
        flag = f"--config.accumulation_steps={parts}"
        remedy = {"flag": flag, "phases": [phases.estimate(x) for x in fitting]}
    reports = list(map(phases.report, trials))
    if search and fits is not None and fitting:
        for report, kinds in zip(reports, phases.remats(fitting), strict=True):
            report["remat"] = kinds
    estimates = remedy["phases"] if remedy else [x["estimated"] for x in reports]
    hours = sum(each["hours"] for each in estimates) if all(estimates) else None
    num_chips = mesh.size // (chip.devices_per_chip if chip else 1)
    libraries = filter(importlib.util.find_spec, ("jax", "jaxlib", "libtpu"))
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
        "checks": checks,
        "phases": reports,
        "remedy": remedy,
        "hours": hours,
        "cost": hours * num_chips * price if hours and price is not None else None,
    }


@dataclasses.dataclass(frozen=True)
class Trial:
    """The compiled step of a phase. All bytes are those of one device."""

    config: ExperimentConfig
    phase_index: int
    sequences: int  # in a microbatch, per device
    facts: dict[str, Any]  # memory and collectives; needed_bytes if it does not fit
    program: hlo.CompiledProgram | None = None  # None if it does not fit

    @property
    def fits(self) -> bool:
        return self.program is not None

    @property
    def total_bytes(self) -> int:
        memory = self.facts.get("memory")
        return memory["total"] if memory else self.facts["needed_bytes"]


def compile_step(
    config: ExperimentConfig, mesh: jax.sharding.Mesh, phase_index: int
) -> Trial:
    """Compiles the train step of a phase for local devices or for a topology.

    libtpu rejects a program that exceeds the memory of its chip, and reports how many
    bytes the program needs.
    """
    with jax.set_mesh(mesh):  # a thread has its own mesh
        graphdef, init = step_lib.init_state(config)
        state = sharding.on_mesh(jax.eval_shape(init), mesh)
        step = compilation.jit(step_lib.make_train_step(config, graphdef))
    phase = config.phases[phase_index]
    batch = sharding.abstract_batch(pipeline.batch_shapes(phase), mesh)
    facts: dict[str, Any] = {
        "arguments": {
            "parameters": hlo.device_bytes((state.params, state.average)),
            "optimizer_moments": hlo.device_bytes(state.opt_state),
            "batch": hlo.device_bytes(batch),
        }
    }
    program, start = None, time.perf_counter()
    try:
        compiled = compilation.compile_phase(config, step, state, mesh, phase_index)
    except jax.errors.JaxRuntimeError as error:
        needed = hlo.refused_bytes(str(error))
        if needed is None:
            raise
        facts["needed_bytes"], _ = needed
    else:
        program = hlo.CompiledProgram(compiled.as_text() or "", mesh.size)
        facts["memory"] = hlo.memory(compiled)
        facts["collectives"] = list(map(dataclasses.asdict, program.collectives))
    facts["seconds_to_compile"] = time.perf_counter() - start
    rows = mesh_lib.batch_divisor(mesh) * config.accumulation_steps
    return Trial(config, phase_index, phase.global_batch_size // rows, facts, program)


@dataclasses.dataclass(frozen=True)
class Phases:
    """Compiles and estimates the steps of all phases."""

    config: ExperimentConfig
    mesh: jax.sharding.Mesh
    chip: Chip | None  # None if the device has no data sheet
    price: float | None  # price of one chip for one hour
    threads: ThreadPoolExecutor

    @property
    def hbm_bytes(self) -> int:
        """Memory of one device, in bytes; 0 if it is unknown."""
        return int(self.chip.hbm_gib * GIB) if self.chip else 0

    def compile(self, config: ExperimentConfig) -> list[Trial]:
        """Compiles the steps of all phases with a changed config."""
        indices = range(len(config.phases))
        return list(self.threads.map(lambda i: self.compile_one(config, i), indices))

    def compile_one(self, config: ExperimentConfig, index: int) -> Trial:
        phase = config.phases[index]
        print(
            f"preflight: compiling phase {index + 1} of {len(config.phases)}:"
            f" {phase.global_batch_size} x {phase.sequence_length} tokens,"
            f" accumulation_steps={config.accumulation_steps}, remat={config.remat}",
            file=sys.stderr,
        )
        return compile_step(config, self.mesh, index)

    def divided(self) -> list[Trial]:
        """Compiles the smallest accumulation_steps with which all phases fit."""
        divisor = mesh_lib.batch_divisor(self.mesh)
        rows = [phase.global_batch_size // divisor for phase in self.config.phases]
        most = math.gcd(*rows)
        for parts in range(self.config.accumulation_steps + 1, most + 1):
            if most % parts == 0:
                config = dataclasses.replace(self.config, accumulation_steps=parts)
                trials = self.compile(config)
                if all(trial.fits for trial in trials):
                    return trials
        return []

    def remats(self, trials: list[Trial]) -> list[list[dict[str, Any]]]:
        """Compares the kinds of remat in each phase, that of the trials first."""
        config = trials[0].config
        others = [name for name in REMAT if name != config.remat]
        configs = [dataclasses.replace(config, remat=name) for name in others]
        compiled = [trials, *map(self.compile, configs)]
        return [list(map(self.summary, kinds)) for kinds in zip(*compiled, strict=True)]

    def summary(self, trial: Trial) -> dict[str, Any]:
        return {
            "accumulation_steps": trial.config.accumulation_steps,
            "remat": trial.config.remat,
            "fits": trial.fits,
            "total_bytes": trial.total_bytes,
            "estimated": self.estimate(trial),
        }

    def report(self, trial: Trial) -> dict[str, Any]:
        phase = trial.config.phases[trial.phase_index]
        return dataclasses.asdict(phase) | {
            "phase": trial.phase_index,
            "accumulation_steps": trial.config.accumulation_steps,
            "micro_batch": trial.sequences,
            "fits": trial.fits if self.hbm_bytes else None,
            "compiled": trial.facts | {"hbm_bytes": self.hbm_bytes},
            "model_flops": throughput.step_flops(trial.config, phase),
            "estimated": self.estimate(trial),
        }

    def estimate(self, trial: Trial) -> dict[str, Any] | None:
        """Estimates cycles and seconds of a step by class, rates, hours and cost.

        Operations take the compiler's estimated cycles at the chip's clock. Collectives
        run one after another at the full rate of the data sheet. Operations without an
        estimate take the time of writing their result at the full bandwidth, and Pallas
        kernels at least that of their FLOPs at `kernel_share` of the peak rate. Waiting
        and the input pipeline are not included.

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
            computed = each.kernel_flops / (chip.kernel_share * chip.peak_flops)
            seconds[program.kind(each)] += times * max(written, computed)
        phase, step = trial.config.phases[trial.phase_index], sum(seconds.values())
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
            "mfu": throughput.step_flops(trial.config, phase) / step / peak_flops,
            "hours": hours,
            "cost": None if self.price is None else hours * num_chips * self.price,
        }


# ------------------------------------------------------------------ without compilation


def check_corpus(config: ExperimentConfig) -> list[str]:
    """Checks the corpus; returns a line for each check that passed or was skipped."""
    directory = config.data.corpus_dir
    if corpus_lib.exists(directory):
        corpus = build.find_corpus(config)
        lines = [f"corpus {directory} matches the config's tokenizer and settings"]
        for i, phase in enumerate(config.phases):
            rows = sum(corpus.rows_per_epoch("train", config.data, phase))
            epochs = phase.num_steps * phase.global_batch_size / rows
            lines.append(
                f"phase {i + 1} takes {epochs:,.1f} epochs of {rows:,} rows of"
                f" {phase.sequence_length} tokens"
            )
    else:
        lines = [f"no corpus in {directory} yet: not checked"]
    lines += _notes(config)
    if config.guard.replay_every_steps:
        lines.append(
            "not included: the memory of config.guard.replay_every_steps, which is two"
            " more states and the temporaries of another step"
        )
    return lines


def check_devices(config: ExperimentConfig, num_devices: int, num_slices: int) -> str:
    """Checks that a config can be divided over the devices of all slices; opens none.

    Returns one line that describes the mesh and the batches.
    """
    shape = mesh_lib.resolve_mesh_shape(config.mesh, num_devices)
    mesh_lib.check_slices(shape[0], num_slices)
    mesh = jax.sharding.AbstractMesh(shape, mesh_lib.AXES)
    mesh_lib.check(config, mesh)
    axes = " x ".join(f"{axis} {n}" for axis, n in mesh.shape.items())
    parts = mesh_lib.batch_divisor(mesh) * config.accumulation_steps
    batches = (
        f"phase {i + 1}: {phase.global_batch_size} sequences,"
        f" {phase.global_batch_size // parts} per device and microbatch"
        for i, phase in enumerate(config.phases)
    )
    fits = f"the config fits {num_devices} device(s), mesh {axes}"
    return "; ".join([fits, *batches, *_notes(config)])


def _notes(config: ExperimentConfig) -> list[str]:
    keys = {"init_from": config.init_from, "branch_from": config.branch_from}
    return optimizer.schedule_notes(config) + [
        f"the weights in config.{key}={path!r} were not checked"
        for key, path in keys.items()
        if path
    ]
