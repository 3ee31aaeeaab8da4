"""Formats the report of `preflight` as text; programs read its JSON instead."""

from collections import Counter
from typing import Any

# Parts of a device's memory, which add up to the total -> their descriptions.
MEMORY = {
    "parameters": "",
    "optimizer_moments": "",
    "batch": "",
    "padding": "of the arguments above to whole tiles",
    "temporaries": "activations, gradients, workspace",
    "outputs": "the new state and metrics",
    "aliased": "outputs that overwrite the old state, not counted twice",
    "code": "the program itself",
}
BINARY: dict[str, float] = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
DECIMAL = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1}  # as in data sheets of links
TIME: dict[str, float] = {
    "hours": 3600,
    "minutes": 60,
    "seconds": 1,
    "ms": 1e-3,
    "us": 1e-6,
}


def scaled(value: float, units: dict[str, float]) -> str:
    """Formats a value in the first unit that it reaches, for example 4.32 GiB."""
    name = next((name for name, n in units.items() if abs(value) >= n), [*units][-1])
    return f"{value / units[name]:,.2f} {name}"


def table(report: dict[str, Any]) -> str:
    """Formats the whole report, in lines of at most about 100 columns."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in report["mesh"].items())
    devices, chips = report["devices"], report["chips"]
    pairs = f", {chips} chips of two devices" if chips < devices else ""
    zero1 = (
        ", optimizer sharded over data (ZeRO-1)" if report["shard_optimizer"] else ""
    )
    lines = [
        f"topology: {report['topology']}, {devices} x {report['device_kind']}{pairs}",
        f"step:     {report['layers']} layers of {report['hidden_size']},"
        f" {report['compute_dtype']}, remat {report['remat']}, mesh {mesh}{zero1}",
        f"versions: {', '.join(f'{k} {v}' for k, v in report['versions'].items())}",
        *(f"checked:  {line}" for line in report["checks"]),
    ]
    for phase in report["phases"]:
        lines += ["", *_phase(phase, len(report["phases"]))]
    lines += ["", _verdict(report)]
    if report["remedy"]:
        lines += map(_rates, filter(None, report["remedy"]["phases"]))
    if report["hours"] is not None:
        lines.append(
            f"Whole schedule: {_hours_and_cost(report)}, an estimate without waiting,"
            " input pipeline and failures."
        )
    return "\n".join(lines)


def _verdict(report: dict[str, Any]) -> str:
    if report["fits"] is None:
        return "UNKNOWN whether it fits: the memory size of this device is unknown"
    if report["fits"]:
        return "The run fits."
    if report["remedy"]:
        return f"The run does not fit; it fits with {report['remedy']['flag']}"
    return "The run does not fit with any accumulation_steps"


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
    elif phase["fits"] is False:
        needed, hbm = (
            scaled(facts[name], BINARY) for name in ("needed_bytes", "hbm_bytes")
        )
        lines.append(f"DOES NOT FIT: needs {needed} of {hbm}; rejected by the compiler")
    lines += ["compiled (facts), per device", *_memory(facts), *_collectives(facts)]
    flops = f"  model FLOPs per step {phase['model_flops']:.3e} over all devices"
    lines += ["estimated", flops, *_time(phase["estimated"])]
    if phase.get("largest_micro_batch") == 0:
        lines.append("  not even one sequence per device fits")
    elif found := phase.get("largest"):
        rows = {f"largest, {phase['largest_micro_batch']:,} rows": found}
        rows |= {f"remat {each['remat']}": each for each in phase.get("remat", ())}
        for name, each in rows.items():
            size = scaled(each["total_bytes"], BINARY)
            fits = "" if each["fits"] else ", DOES NOT FIT"
            rates = _rates(each["estimated"]) if each["estimated"] else ""
            lines.append(f"  {name:<20} {size:>12}{fits}{rates}")
    return lines


def _memory(facts: dict[str, Any]) -> list[str]:
    """Formats the parts of memory and their total, or the arguments only."""
    parts, memory = dict(facts["arguments"]), facts.get("memory")
    if memory:
        parts |= {name: memory[name] for name in MEMORY if name in memory}
        parts["padding"] = memory["arguments"] - sum(facts["arguments"].values())
        parts["aliased"] = -memory["aliased"]
    rows = [(name, parts[name], MEMORY[name]) for name in MEMORY if name in parts]
    if memory:
        rows.append(("total", memory["total"], "sum of the above"))
    if hbm := facts.get("hbm_bytes"):
        over = memory and memory["total"] > hbm
        note = "less than the total, but libtpu accepts the program" if over else ""
        rows.append(("available memory", hbm, note))
    return [
        f"  {name.replace('_', ' '):<20} {scaled(size, BINARY):>12}  {note}".rstrip()
        for name, size, note in rows
    ]


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
        f"  {kind:<20} {scaled(size[kind, where], DECIMAL):>12} per step in {n}"
        f" operation{'s' if n != 1 else ''}, {where}"
        for (kind, where), n in number.items()
    ]


def _time(estimated: dict[str, Any] | None) -> list[str]:
    if not estimated:
        return [f"  {'time':<20} unknown: only the TPU's compiler estimates cycles"]
    total, cycles = estimated["step_seconds"], estimated["cycles"]
    lines = [
        f"  {name:<20} {scaled(seconds, TIME):>12}  {seconds / total:>4.0%}"
        + (f"  {cycles[name] / 1e6:>10.3f} M cycles" if name in cycles else "")
        for name, seconds in estimated["seconds"].items()
    ]
    return [*lines, _rates(estimated)]


def _rates(estimated: dict[str, Any]) -> str:
    return (
        f"  step {scaled(estimated['step_seconds'], TIME)},"
        f" {estimated['sequences_per_second']:,.0f} sequences/s,"
        f" MFU {estimated['mfu']:.1%}, {_hours_and_cost(estimated)}"
    )


def _hours_and_cost(found: dict[str, Any]) -> str:
    cost = "" if found["cost"] is None else f", cost {found['cost']:,.2f}"
    return scaled(found["hours"] * 3600, TIME) + cost
