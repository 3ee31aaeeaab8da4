"""The report of `preflight` as text for people; programs take its JSON."""

from collections.abc import Iterable
from typing import Any

from bert_jax.topologies import GIB

MEMORY = ("temporaries", "outputs", "aliased", "code", "total")


def table(report: dict[str, Any]) -> str:
    """Returns the whole report, lines of at most some 100 columns."""
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
        + (f", {chips} chips (a device is half a chip)" if chips < devices else ""),
        f"step:     {report['layers']} layers of {report['hidden_size']},"
        f" {report['compute_dtype']}, remat {report['remat']}, mesh {mesh}"
        + (", optimizer over data (ZeRO-1)" if report["shard_optimizer"] else ""),
        f"versions: {versions}",
        *(f"checked:  {line}" for line in report["checks"]),
    ]


def _phase(phase: dict[str, Any], report: dict[str, Any]) -> list[str]:
    parts = phase["accumulation_steps"]
    lines = [
        f"== phase {phase['phase']}: {phase['num_steps']:,} steps of"
        f" {phase['global_batch_size']:,} x {phase['sequence_length']} tokens,"
        f" {phase['micro_batch']:,} sequences a device at a time"
        + (f", {parts} times" if parts > 1 else ""),
        _verdict(phase),
        "compiled (facts), of one device",
        *_memory(phase["compiled"]),
        *_collectives(phase["compiled"].get("collectives", ())),
    ]
    lines.append("estimated")
    lines.append(f"  model FLOPs a step   {phase['model_flops']:.3e} over all devices")
    lines += _time(phase["estimated"])
    lines += _search(phase, report)
    return lines


def _verdict(phase: dict[str, Any]) -> str:
    if phase["fits"] is None:
        return "whether it fits is not known: the memory of this device is not"
    if phase["fits"]:
        return "FITS"
    compiled = phase["compiled"]
    return (
        f"DOES NOT FIT: needs {_gib(compiled['needed_bytes'])} of"
        f" {_gib(compiled['hbm_bytes'])}; the compiler refused it"
    )


def _memory(compiled: dict[str, Any]) -> list[str]:
    rows = [(name, size) for name, size in compiled["arguments"].items()]
    if memory := compiled.get("memory"):
        padding = memory["arguments"] - sum(compiled["arguments"].values())
        rows.append(("padding of arguments", padding))
        rows += [(name, memory[name]) for name in MEMORY]
    if hbm := compiled.get("hbm_bytes"):
        rows.append(("memory there is", hbm))
    return [f"  {name.replace('_', ' '):<20} {_gib(size):>12}" for name, size in rows]


def _collectives(collectives: Iterable[dict[str, Any]]) -> list[str]:
    """Tells of each kind, and number of devices, in one line: in all a step."""
    totals: dict[tuple[str, int], tuple[int, int]] = {}
    for each in collectives:
        key, times = (each["kind"], each["devices"]), each["times_a_step"]
        number, size = totals.get(key, (0, 0))
        totals[key] = number + times, size + times * each["bytes"]
    return [
        f"  {kind:<20} {size / 1e6:>9,.1f} MB a step, {number} times"
        + (
            ", to another slice: in no estimate"
            if kind == "send"
            else f", over {devices} devices"
        )
        for (kind, devices), (number, size) in totals.items()
    ]


def _time(estimated: dict[str, Any] | None) -> list[str]:
    if not estimated:
        return [
            "  time                 not known: only the TPU's compiler tells cycles"
        ]
    lines = []
    total = estimated["step_seconds"]
    for name, seconds in estimated["seconds"].items():
        cycles = estimated["cycles"].get(name)
        lines.append(
            f"  {name:<20} {seconds * 1e3:>9.2f} ms  {seconds / total:>4.0%}"
            + (f"  {cycles / 1e6:>9.2f} M cycles" if cycles is not None else "")
        )
    return [*lines, f"  a step               {total * 1e3:>9.2f} ms", _rates(estimated)]


def _rates(estimated: dict[str, Any]) -> str:
    cost = estimated["cost"]
    return (
        f"  {estimated['sequences_per_second']:,.0f} sequences/s, MFU"
        f" {estimated['mfu']:.1%}, {estimated['hours']:,.1f} hours"
        + (f", cost {cost:,.0f}" if cost is not None else "")
    )


def _search(phase: dict[str, Any], report: dict[str, Any]) -> list[str]:
    if "largest_micro_batch" not in phase:
        return []
    sequences, largest = phase["largest_micro_batch"], phase.get("largest")
    if not largest:
        return ["  not one sequence a device fits"]
    mfu = largest["estimated"]["mfu"] if largest["estimated"] else None
    lines = [
        f"  largest micro-batch  {sequences:,} sequences a device (compiled:"
        f" {_gib(largest['total_bytes']).strip()})"
        + (f", MFU {mfu:.1%}" if mfu is not None else "")
    ]
    for each in phase.get("remat", ()):
        lines.append(
            f"  remat {each['remat']:<14} {_gib(each['total_bytes']):>12}, largest"
            f" {each['largest_micro_batch']:,}"
            + (f", {each['cycles'] / 1e6:,.1f} M cycles" if each["cycles"] else "")
            + (", compiled" if each is phase["remat"][0] else ", from few layers")
        )
    return lines


def _end(report: dict[str, Any]) -> list[str]:
    lines = []
    if report["fits"] is False:
        remedy = report["remedy"]
        lines.append(
            f"It does not fit; it does with {remedy['flag']}"
            if remedy
            else "It does not fit, and no accumulation_steps makes it fit"
        )
        for each in filter(None, remedy["phases"] if remedy else ()):
            lines.append(
                f"{each['step_seconds'] * 1e3:>11.2f} ms a step:{_rates(each)}"
            )
    elif report["fits"]:
        lines.append("It fits.")
    if report["hours"] is not None:
        cost = report["cost"]
        lines.append(
            f"The whole schedule: {report['hours']:,.1f} hours"
            + (f", cost {cost:,.0f}" if cost is not None else "")
            + ", an estimate without waiting, input and failures."
        )
    return lines


def _gib(size: float) -> str:
    return f"{size / GIB:,.3f} GiB"
