"""Formats the report of `preflight` as text; programs read its JSON instead."""

from collections.abc import Iterable
from typing import Any

from bert_jax.preflight import quantities

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
OVER = "less than the total, but libtpu accepts the program"


def table(report: dict[str, Any]) -> str:
    """Formats the whole report, in lines of at most about 100 columns."""
    lines = [*_head(report)]
    for phase in report["phases"]:
        lines += ["", *_phase(phase, report)]
    return "\n".join([*lines, "", *_end(report)])


def _head(report: dict[str, Any]) -> list[str]:
    devices, chips = report["devices"], report["chips"]
    mesh = " x ".join(f"{axis} {size}" for axis, size in report["mesh"].items())
    versions = ", ".join(f"{name} {v}" for name, v in report["versions"].items())
    return [
        f"topology: {report['topology']}, {devices} x {report['device_kind']}"
        + (f", {chips} chips of two devices" if chips < devices else ""),
        f"step:     {report['layers']} layers of {report['hidden_size']},"
        f" {report['compute_dtype']}, remat {report['remat']}, mesh {mesh}"
        + (
            ", optimizer sharded over data (ZeRO-1)"
            if report["shard_optimizer"]
            else ""
        ),
        f"versions: {versions}",
        *(f"checked:  {line}" for line in report["checks"]),
    ]


def _phase(phase: dict[str, Any], report: dict[str, Any]) -> list[str]:
    parts, compiled = phase["accumulation_steps"], phase["compiled"]
    lines = [
        f"== phase {phase['phase'] + 1} of {len(report['phases'])}:"
        f" {phase['num_steps']:,} steps of"
        f" {phase['global_batch_size']:,} x {phase['sequence_length']} tokens,"
        f" {phase['micro_batch']:,} sequences per device"
        + (f" in each of {parts} microbatches" if parts > 1 else ""),
        _verdict(phase),
        f"{'compiled (facts)' if compiled else 'not compiled'}, per device",
        *_memory(compiled or phase["from_few_layers"]),
    ]
    if compiled:
        lines += _collectives(compiled.get("collectives", ()))
    lines.append("estimated")
    lines.append(f"  model FLOPs per step {phase['model_flops']:.3e} over all devices")
    lines += _time(phase["estimated"])
    lines += _search(phase)
    return lines


def _verdict(phase: dict[str, Any]) -> str:
    if phase["fits"] is None:
        return "UNKNOWN whether it fits: the memory size of this device is unknown"
    if phase["fits"]:
        return "FITS"
    compiled = phase["compiled"]
    found = compiled or phase["from_few_layers"]
    needed, hbm = (
        quantities.memory(found[name]) for name in ("needed_bytes", "hbm_bytes")
    )
    if compiled:
        return f"DOES NOT FIT: needs {needed} of {hbm}; rejected by the compiler"
    layers = " and ".join(map(str, found["layers"]))
    return (
        f"DOES NOT FIT: needs about {needed} of {hbm}; estimated from {layers} layers,"
        " not compiled"
    )


def _memory(found: dict[str, Any]) -> list[str]:
    """Formats the parts of memory and their total, or the arguments only."""
    parts, memory = dict(found["arguments"]), found.get("memory")
    if memory:
        parts |= {name: memory[name] for name in MEMORY if name in memory}
        parts["padding"] = memory["arguments"] - sum(found["arguments"].values())
        parts["aliased"] = -memory["aliased"]
    rows = [(name, parts[name], MEMORY[name]) for name in MEMORY if name in parts]
    if memory:
        rows.append(("total", memory["total"], "sum of the above"))
    if hbm := found.get("hbm_bytes"):
        over = memory and memory["total"] > hbm
        rows.append(("available memory", hbm, OVER if over else ""))
    return [
        f"  {name.replace('_', ' '):<20} {quantities.memory(size):>12}  {note}".rstrip()
        for name, size, note in rows
    ]


def _collectives(collectives: Iterable[dict[str, Any]]) -> list[str]:
    """Formats the total per step of each kind and number of devices in one line."""
    totals: dict[tuple[str, int], tuple[int, int]] = {}
    for each in collectives:
        key, times = (each["kind"], each["devices"]), each["times_a_step"]
        number, size = totals.get(key, (0, 0))
        totals[key] = number + times, size + times * each["bytes"]
    return [
        f"  {kind:<20} {quantities.traffic(size):>12} per step in {number}"
        f" operation{'s' if number != 1 else ''}"
        + (
            ", to another slice: not included in the estimate"
            if kind == "send"
            else f", over {devices} devices"
        )
        for (kind, devices), (number, size) in totals.items()
    ]


def _time(estimated: dict[str, Any] | None) -> list[str]:
    if not estimated:
        return [
            "  time                 unknown: only the TPU's compiler estimates cycles"
        ]
    lines = []
    total = estimated["step_seconds"]
    for name, seconds in estimated["seconds"].items():
        cycles = estimated["cycles"].get(name)
        lines.append(
            f"  {name:<20} {quantities.step_time(seconds):>12}  {seconds / total:>4.0%}"
            + (f"  {cycles / 1e6:>10.3f} M cycles" if cycles is not None else "")
        )
    per_step = f"  {'step':<20} {quantities.step_time(total):>12}"
    return [*lines, per_step, _rates(estimated)]


def _rates(estimated: dict[str, Any]) -> str:
    return (
        f"  {estimated['sequences_per_second']:,.0f} sequences/s, MFU"
        f" {estimated['mfu']:.1%}, {_hours_and_cost(estimated)}"
    )


def _hours_and_cost(found: dict[str, Any]) -> str:
    cost = found["cost"]
    return quantities.run_time(found["hours"]) + (
        f", cost {quantities.money(cost)}" if cost is not None else ""
    )


def _search(phase: dict[str, Any]) -> list[str]:
    if "largest_micro_batch" not in phase:
        return []
    sequences, largest = phase["largest_micro_batch"], phase.get("largest")
    if not largest:
        return ["  not even one sequence per device fits"]
    mfu = largest["estimated"]["mfu"] if largest["estimated"] else None
    lines = [
        f"  largest microbatch   {sequences:,} sequences per device (compiled:"
        f" {quantities.memory(largest['total_bytes'])})"
        + (f", MFU {mfu:.1%}" if mfu is not None else "")
    ]
    for each in phase.get("remat", ()):
        lines.append(
            f"  remat {each['remat']:<14} {quantities.memory(each['total_bytes']):>12},"
            f" largest {each['largest_micro_batch']:,}"
            + (f", {each['cycles'] / 1e6:,.3f} M cycles" if each["cycles"] else "")
            + (", compiled" if each is phase["remat"][0] else ", from few layers")
        )
    return lines


def _end(report: dict[str, Any]) -> list[str]:
    lines = []
    if report["fits"] is False:
        remedy = report["remedy"]
        lines.append(
            f"The run does not fit; it fits with {remedy['flag']}"
            if remedy
            else "The run does not fit with any accumulation_steps"
        )
        for each in filter(None, remedy["phases"] if remedy else ()):
            step = quantities.step_time(each["step_seconds"])
            lines.append(f"{step:>14} per step:{_rates(each)}")
    elif report["fits"]:
        lines.append("The run fits.")
    if report["hours"] is not None:
        lines.append(
            f"Whole schedule: {_hours_and_cost(report)}, an estimate without waiting,"
            " input pipeline and failures."
        )
    return lines
