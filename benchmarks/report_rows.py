"""Converts rows of benchmarks/results to lines of tables, for benchmarks/report.py."""

import statistics
import string
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]
# A format string with keys of the row, or a function of the row.
Column = str | Callable[[Row], str]

# Versions that tables show; a row has more.
VERSIONS = {"python": "Python", "jax": "jax", "libtpu": "libtpu"}


def cells(row: Row) -> list[dict[str, str]]:
    """Returns the lines of the table for a row: texts by the head of their column."""
    kind = row["benchmark"]
    (first, column), *others = COLUMNS.get(kind, MEASURED).items()
    return [
        {
            first: _fill(column, line),
            "device": device(row),
            **{head: _fill(column, line) for head, column in others},
            "versions": versions(row),
        }
        for line in LINES.get(kind, lambda row: [row])(row)
    ]


def _fill(column: Column, line: Row) -> str:
    if callable(column):
        return column(line)
    return _Formatter().vformat(column, (), line)


class _Formatter(string.Formatter):
    """Formats a number without a specification as `number` does."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec or isinstance(value, str):
            return super().format_field(value, format_spec)
        return number(value)


def number(value: Any) -> str:
    """Returns a number with three significant digits, and all digits before a point."""
    if value is None:
        return ""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _join(values: Iterable[Any], spec: str = "") -> str:
    return ", ".join(format(value, spec) for value in values)


def device(row: Row) -> str:
    device = row.get("device")
    if (not device or device == "cpu") and "cpu_count" in row:
        return f"{row['cpu_count']} CPU cores"
    return device or ""


def versions(row: Row) -> str:
    return ", ".join(
        f"{VERSIONS[name]} {version}"
        for name, version in row["versions"].items()
        if name in VERSIONS
    )


# ---- Lines of rows that have several, or values that are calculated


def _phases(report: Row) -> list[Row]:
    """Returns a line for each phase of a report of preflight."""
    lines = []
    for phase in report["phases"]:
        compiled, estimate = phase["compiled"], phase["estimated"]
        seconds, kinds = estimate["step_seconds"], estimate["seconds"]
        calculated = {
            "batch": phase["global_batch_size"] // report["devices"],
            "memory": compiled["memory"]["total"] / 2**30,
            "hbm": compiled["hbm_bytes"] / 2**30,
            "milliseconds": 1000 * seconds,
            "matmul": kinds["matmul"] / seconds,
            "attention": kinds["attention"] / seconds,
        }
        lines.append(report | phase | compiled | estimate | calculated)
    return lines


def _schedule(row: Row) -> list[Row]:
    """Returns the line of a step by the TPU compiler's final schedule."""
    classes = {name: f"{x / 1e6:.1f} M" for name, x in row["classes"].items()}
    calculated = {
        "its_share": row["ideal"] / row["larger_of"],
        "millions": row["larger_of"] / 1e6,
        "memory": row["memory_bytes"] / 2**30,
    }
    return [row | dict.fromkeys(SCHEDULE_CLASSES, "") | classes | calculated]


def _loss_curve(row: Row) -> list[Row]:
    """Returns the line of a variant of benchmarks.time_to_loss."""
    steps = row["curves"][0]["steps"][-1]

    def last(metric: str) -> str:
        return _join((curve[metric][-1] for curve in row["curves"]), ".3f")

    calculated = {
        "milliseconds": 1000 * row["step_seconds"],
        "steps": steps,
        "seconds": steps * row["step_seconds"],
        "losses": last("masked_lm_loss"),
        "accuracies": last("next_sentence_accuracy"),
        "majority": row["next_sentence_majority"],
    }
    return [row | calculated]


def _evaluations(row: Row) -> list[Row]:
    """Returns a line for each evaluation of a run of train."""
    return [
        row | line | {"millions": line["tokens"] / 1e6} for line in row["evaluations"]
    ]


LINES: dict[str, Callable[[Row], list[Row]]] = {
    "preflight": _phases,
    "tpu_schedule": _schedule,
    "loss_curve": _loss_curve,
    "pretraining": _evaluations,
}


# ---- Columns


def _value(key: str) -> Callable[[Row], str]:
    """Returns the column of a value, which has all digits for benchmarks in EXACT."""

    def text(row: Row) -> str:
        if row["benchmark"] not in EXACT:
            return number(row[key])
        return "" if row[key] is None else f"{row[key]:,}"

    return text


def _spread(row: Row) -> str:
    return f"{row['spread']:.0%} of {row['repeats']}" if row["repeats"] > 1 else ""


def _floor(row: Row) -> str:
    floor_of = f" ({row['floor_of']})" if row["floor_of"] else ""
    return number(row["floor"]) + floor_of


def _scores(key: str) -> Callable[[Row], str]:
    return lambda row: (
        f"{statistics.mean(row[key]):.3f} ({', '.join(f'{x:.3f}' for x in row[key])})"
    )


def _more(row: Row) -> str:
    return ", ".join(
        words(row[key]) if callable(words) else words.format(row[key])
        for key, words in MORE.items()
        if row.get(key) is not None
    )


# Other numbers of a measured row that tables show, and how.
MORE: dict[str, str | Callable[[Any], str]] = {
    "text_share": "{:.1%} of tokens are text",
    "accuracy": "accuracy {:.3f}",
    "parameter_bytes": lambda value: f"{value / 1e6:.1f} MB of parameters",
    "steps": "{:,} steps",
    "seconds": "{:,} s",
    "cpu_seconds": "{:.1f} s of CPU time",
    "stages": lambda value: ", ".join(f"{k} {v:.1f} s" for k, v in value.items() if v),
    "pearson": "Pearson {}",
    "peer_pearson": "Pearson of the reference {}",
    "largest_difference": "vectors differ by at most {:g}",
    "max_length": "at most {} tokens",
    "by_state": lambda values: "embeddings, then layers: " + _join(values, ".1e"),
    "terms": lambda values: ", ".join(f"{k} {v}" for k, v in values.items()),
}
# Benchmarks whose values have all digits.
EXACT = ("hidden_states", "sts", "tuning_losses")
# Classes of operations of the table of schedules; hlo.CLASSES without an import of JAX.
SCHEDULE_CLASSES = (
    *("matmul", "attention", "head", "embeddings", "elementwise", "dropout"),
    *("optimizer", "copies"),
)
MEASURED: dict[str, Column] = {
    "case": "{case}",
    "ours": lambda row: f"{_value('value')(row)} {row['unit']}",
    "reference": lambda row: row["peer"] or "",
    "result of the reference": _value("peer_value"),
    "ratio": "{ratio}",
    "MFU": lambda row: "" if row.get("mfu") is None else f"{row['mfu']:.1%}",
    "spread, repeats": _spread,
    "more": _more,
}
COLUMNS: dict[str, dict[str, Column]] = {
    "tuning": {
        "task": "{case}",
        "metric": "{unit}",
        "pretrained": "{value}",
        "random weights": "{peer_value}",
        "without a network": _floor,
        "learning rates": lambda row: _join(
            (rate for rate in (row["rate"], row["peer_rate"]) if rate), "g"
        ),
        "seeds": "{repeats}",
    },
    "tuning_parity": {
        "task": "{case}",
        "metric": "{unit}",
        "bert_jax": _scores("scores"),
        "transformers in PyTorch": _scores("peer_scores"),
        "without a network": _floor,
        "learning rate": "{rate:g}",
    },
    "preflight": {
        "slice": "{topology}",
        "sequences x tokens on a device": "{batch} x {sequence_length}",
        "memory of a device": "{memory:.1f} of {hbm:.1f} GiB",
        "step": "{milliseconds:.0f} ms",
        "matrix products": "{matmul:.0%}",
        "attention": "{attention:.0%}",
        "sequences/s per chip": "{sequences_per_second_per_chip:,.0f}",
        "MFU": "{mfu:.0%}",
        "compilation": "{seconds_to_compile:.0f} s",
    },
    "tpu_schedule": {
        "slice": "{topology}",
        "step": "{case}",
        "cycles, estimated": "{value}",
        "share of peak": "{share_of_peak:.0%}",
        "larger of bundles and bytes": "{millions:.1f} M",
        "its share of peak": "{its_share:.0%}",
        **{name: f"{{{name}}}" for name in SCHEDULE_CLASSES},
        "memory": "{memory:.1f} GiB",
    },
    "gpu_profile": {
        "case": "{case}",
        "all kernels": "{value} us",
        "each kind, us": lambda row: ", ".join(
            f"{kind} {number(time)}" for kind, time in row["classes"].items()
        ),
    },
    "speedrun": {
        "time": "{value} s",
        "change": "{case}",
        "track": "{track}",
        "date": "{date}",
        "steps": "{steps}",
        "held-out loss": "{masked_lm_loss:.3f}",
        "target": "{target:.3f}",
        "seeds": lambda row: _join(row["seeds"]),
        "corpus": "`{corpus}`",
        "log": "`{log}`",
    },
    "loss_curve": {
        "variant": "{case}",
        "step": "{milliseconds:.0f} ms",
        "pairs in a step": "{pairs:.1f}",
        "text": "{text_share:.0%} of tokens",
        "steps": "{steps:,}",
        "time of the steps": "{seconds:.0f} s",
        "held-out masked-LM loss": "{value} nats",
        "loss of each seed": "{losses}",
        "next-sentence accuracy": "{accuracies} (majority {majority:.3f})",
    },
    "pretraining": {
        "run": "{case}",
        "step": "{step:,}",
        "time": "{seconds:.0f} s",
        "tokens": "{millions:,.0f} M",
        "FLOPs": "{flops:.1e}",
        "held-out masked-LM loss": "{masked_lm_loss:.3f} nats",
        "next-sentence accuracy": "{next_sentence_accuracy:.3f}",
    },
}
