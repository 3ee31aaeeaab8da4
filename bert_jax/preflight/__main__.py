"""Estimates memory, step time and cost of a run by ahead-of-time compilation.

    python -m bert_jax.preflight --config=configs/X.py --topology=v5e:16x16 [--json]
        [--price_per_chip_hour=1.2] [--nosearch] [--config.KEY=VALUE ...]
    python -m bert_jax.preflight --config=configs/X.py --devices=N
        [--slices=1] [--config.KEY=VALUE ...]

Needs no TPU and opens none. Compiles the train step of each phase with the TPU's
compiler. Memory and collectives are read from the compiled program; step time, MFU,
hours and cost are estimates. If a batch does not fit, also compiles it with more
accumulation_steps until it does. Then compiles each kind of remat, unless --nosearch is
given. The exit code is 0 whether the run fits or not: see "fits" in the report. A slice
may also be given by Google's name: v4-8 is v4:2x2x1, v5litepod-64 is v5e:8x8.

With --devices, compiles nothing and needs no libtpu: checks within seconds whether the
config can be divided over N devices of any kind, counted over all --slices.
"""

import json
from collections import Counter
from typing import Any

from absl import flags

from bert_jax import cli
from bert_jax.distributed import chips
from bert_jax.errors import ConfigError
from bert_jax.loading import new_run
from bert_jax.preflight import check

BYTES: dict[str, float] = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
TIME = {"hours": 3600.0, "minutes": 60, "seconds": 1, "ms": 1e-3, "us": 1e-6}


def main() -> None:
    config = new_run.complete(cli.load_values(_CONFIG), cli.given_keys())
    if _DEVICES.value is not None:
        cli.exclude("devices", "topology", "json", "price_per_chip_hour")
        print(check.check_devices(config, _DEVICES.value, _SLICES.value))
        return
    if _SLICES.value > 1:
        raise ConfigError("--slices needs --devices; see also --topology=2*v5e:16x16")
    if _TOPOLOGY.value is None:
        raise ConfigError(
            f"--topology is missing; give {chips.LOCAL}, or a slice such as"
            f" {', '.join(chips.EXAMPLES.values())}, or v5litepod-64"
        )
    options = _TOPOLOGY.value, _PRICE.value, _SEARCH.value
    report = {"arguments": cli.config_arguments()} | check.preflight(config, *options)
    print(json.dumps(report) if _JSON.value else table(report))


# ------------------------------------------------------------------------------ report


def scaled(value: float, units: dict[str, float]) -> str:
    """Formats a value in the first unit that it reaches, for example 4.32 GiB."""
    name = next((name for name, n in units.items() if abs(value) >= n), [*units][-1])
    return f"{value / units[name]:,.2f} {name}"


def table(report: dict[str, Any]) -> str:
    """Formats the whole report, in lines of at most about 100 columns."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in report["mesh"].items())
    devices, chips = report["devices"], report["chips"]
    pairs = f", {chips} chips of two devices" if chips < devices else ""
    zero1 = ", optimizer sharded over data" if report["shard_optimizer"] else ""
    lines = [
        f"topology: {report['topology']}, {devices} x {report['device_kind']}{pairs}",
        f"step:     {report['layers']} layers of {report['hidden_size']},"
        f" {report['compute_dtype']}, remat {report['remat']}, mesh {mesh}{zero1}",
        f"versions: {', '.join(f'{k} {v}' for k, v in report['versions'].items())}",
        *(f"checked:  {line}" for line in report["checks"]),
    ]
    for phase in report["phases"]:
        lines += ["", *_phase(phase, len(report["phases"]))]
    lines += ["", *_verdict(report)]
    if report["hours"] is not None:
        total = _hours_and_cost(report)
        lines.append(f"Whole schedule: {total}, an estimate without waiting for input")
    return "\n".join(lines)


def _verdict(report: dict[str, Any]) -> list[str]:
    if report["fits"] is None:
        return ["UNKNOWN whether it fits: the memory size of this device is unknown"]
    if report["fits"]:
        return ["The run fits."]
    if not (remedy := report["remedy"]):
        return ["The run does not fit with any accumulation_steps"]
    line = f"The run does not fit; it fits with {remedy['flag']}"
    return [line, *map(_rates, filter(None, remedy["phases"]))]


def _phase(phase: dict[str, Any], num_phases: int) -> list[str]:
    parts, facts = phase["accumulation_steps"], phase["compiled"]
    lines = [
        f"== phase {phase['phase'] + 1} of {num_phases}: {phase['num_steps']:,} steps"
        f" of {phase['global_batch_size']:,} x {phase['sequence_length']} tokens,"
        f" {phase['micro_batch']:,} sequences per device"
        + (f" in each of {parts} microbatches" if parts > 1 else "")
    ]
    if phase["fits"]:
        lines.append("FITS")
    elif needed := facts.get("needed_bytes"):
        lines.append(f"DOES NOT FIT: the program needs {scaled(needed, BYTES)}")
    lines += ["compiled program, per device", *_memory(facts), *_collectives(facts)]
    flops = f"  model FLOPs per step {phase['model_flops']:.3e} over all devices"
    lines += ["estimated", flops, *_time(phase["estimated"])]
    for each in phase.get("remat", ()):
        fits = "" if each["fits"] else ", DOES NOT FIT"
        if each["accumulation_steps"] != parts:
            fits += f", accumulation_steps {each['accumulation_steps']}"
        rates = _rates(each["estimated"]) if each["estimated"] else ""
        size = scaled(each["total_bytes"], BYTES)
        lines.append(_row(f"remat {each['remat']}", size, fits + rates))
    return lines


def _row(name: str, value: str, rest: str = "") -> str:
    return f"  {name.replace('_', ' '):<20} {value:>12}{rest}"


def _memory(facts: dict[str, Any]) -> list[str]:
    """Formats the parts of memory and their total, or the arguments only."""
    parts = dict(facts["arguments"])
    if memory := facts.get("memory"):
        parts |= {name: memory[name] for name in ("temporaries", "code")}
        parts["padding and metrics"] = memory["total"] - sum(parts.values())
        parts["total"] = memory["total"]
    if facts["hbm_bytes"]:
        parts["available memory"] = facts["hbm_bytes"]
    return [_row(name, scaled(size, BYTES)) for name, size in parts.items()]


def _collectives(facts: dict[str, Any]) -> list[str]:
    """Formats the total per step of each kind and number of devices in one line."""
    number, size = Counter(), Counter()
    for each in facts.get("collectives", ()):
        where = f"over {each['devices']} devices"
        if each["kind"] == "send":
            where = "to another slice: not included in the estimate"
        number[each["kind"], where] += each["times_a_step"]
        size[each["kind"], where] += each["times_a_step"] * each["bytes"]
    return [
        _row(kind, scaled(size[kind, where], BYTES), f" per step in {n} calls, {where}")
        for (kind, where), n in number.items()
    ]


def _time(estimated: dict[str, Any] | None) -> list[str]:
    if not estimated:
        return ["  time unknown: only the TPU's compiler estimates cycles"]
    lines = []
    for name, seconds in estimated["seconds"].items():
        share, cycles = seconds / estimated["step_seconds"], estimated["cycles"]
        count = f"  {cycles[name] / 1e6:>10.3f} M cycles" if name in cycles else ""
        lines.append(_row(name, scaled(seconds, TIME), f"  {share:>4.0%}{count}"))
    return [*lines, _rates(estimated)]


def _rates(estimated: dict[str, Any]) -> str:
    return (
        f"  step {scaled(estimated['step_seconds'], TIME)},"
        f" {estimated['sequences_per_second']:,.0f} sequences/s,"
        f" MFU {estimated['mfu']:.1%}, {_hours_and_cost(estimated)}"
    )


def _hours_and_cost(estimate: dict[str, Any]) -> str:
    cost = "" if estimate["cost"] is None else f", cost {estimate['cost']:,.2f}"
    return scaled(estimate["hours"] * 3600, TIME) + cost


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    _TOPOLOGY = flags.DEFINE_string(
        "topology",
        None,
        "TPU slices, such as v5e:16x16, v5litepod-64 or 2*v5e:16x16, or local",
    )
    _DEVICES = flags.DEFINE_integer(
        "devices", None, "number of devices: check only the division", lower_bound=1
    )
    _SLICES = flags.DEFINE_integer(
        "slices", 1, "number of TPU slices that contain --devices", lower_bound=1
    )
    _JSON = flags.DEFINE_bool("json", False, "print one JSON object, not a table")
    _PRICE = flags.DEFINE_float(
        "price_per_chip_hour", None, "price of one chip for one hour", lower_bound=0.0
    )
    _SEARCH = flags.DEFINE_bool("search", True, "compare the kinds of remat")
    cli.run_and_leave(main, __doc__, computes=False)
