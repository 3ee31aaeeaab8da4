"""Converts rows of benchmarks/results to lines of tables, for benchmarks/report.py."""

import statistics
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

# Versions that tables show; a row has more.
VERSIONS = {"python": "Python", "jax": "jax", "libtpu": "libtpu"}


def cells(row: Row) -> list[dict[str, str]]:
    """Returns the lines of the table for a row: texts by the head of their column.

    Raises:
      AttributeError, KeyError, TypeError, ValueError: if the row is malformed.
    """
    lines = KINDS.get(row["benchmark"], _measured)(row)
    for head, text in (item for line in lines for item in line.items()):
        if not isinstance(text, str):
            raise TypeError(f"{head}={text!r} is not text")
    return lines


def _measured(row: Row) -> list[dict[str, str]]:
    digits = all_digits if row["benchmark"] in EXACT else number
    return [
        {
            "case": row["case"],
            "device": device(row),
            "ours": f"{digits(row['value'])} {row['unit']}",
            "reference": row["peer"] or "",
            "result of the reference": digits(row["peer_value"]),
            "ratio": number(row["ratio"]),
            "MFU": "" if row.get("mfu") is None else f"{row['mfu']:.1%}",
            "spread, repeats": (
                ""
                if row["repeats"] == 1
                else f"{row['spread']:.0%} of {row['repeats']}"
            ),
            "more": _more(row),
            "versions": versions(row),
        }
    ]


def _tuning(row: Row) -> list[dict[str, str]]:
    """Returns the line of fine-tuning with and without pretraining."""
    floor = f" ({row['floor_of']})" if row["floor_of"] else ""
    return [
        {
            "task": row["case"],
            "metric": row["unit"],
            "device": device(row),
            "pretrained": number(row["value"]),
            "random weights": number(row["peer_value"]),
            "without a network": number(row["floor"]) + floor,
            "learning rates": ", ".join(
                f"{rate:g}" for rate in (row["rate"], row["peer_rate"]) if rate
            ),
            "seeds": str(row["repeats"]),
            "versions": versions(row),
        }
    ]


def _tuning_parity(row: Row) -> list[dict[str, str]]:
    """Returns the line of fine-tuning compared with a loop over transformers."""

    def scores(values: list[float]) -> str:
        each = ", ".join(f"{value:.3f}" for value in values)
        return f"{statistics.mean(values):.3f} ({each})"

    floor = f" ({row['floor_of']})" if row["floor_of"] else ""
    return [
        {
            "task": row["case"],
            "metric": row["unit"],
            "device": device(row),
            "bert_jax": scores(row["scores"]),
            row["peer"]: scores(row["peer_scores"]),
            "without a network": number(row["floor"]) + floor,
            "learning rate": f"{row['rate']:g}",
            "versions": versions(row),
        }
    ]


def _preflight(report: Row) -> list[dict[str, str]]:
    """Returns the lines of a report of preflight, one for each phase."""
    lines = []
    for phase in report["phases"]:
        compiled, estimate = phase["compiled"], phase["estimated"]
        seconds, gib = estimate["step_seconds"], 2**30
        memory = compiled["memory"]["total"] / gib
        lines.append(
            {
                "slice": report["topology"],
                "device": "",
                "sequences x tokens on a device": batch(report, phase),
                "memory of a device": (
                    f"{memory:.1f} of {compiled['hbm_bytes'] / gib:.1f} GiB"
                ),
                "step": f"{seconds * 1000:.0f} ms",
                "matrix products": f"{estimate['seconds']['matmul'] / seconds:.0%}",
                "attention": f"{estimate['seconds']['attention'] / seconds:.0%}",
                "sequences/s per chip": (
                    f"{estimate['sequences_per_second_per_chip']:,.0f}"
                ),
                "MFU": f"{estimate['mfu']:.0%}",
                "compilation": f"{compiled['seconds_to_compile']:.0f} s",
                "versions": versions(report),
            }
        )
    return lines


def _tpu_schedule(row: Row) -> list[dict[str, str]]:
    """Returns the line of a step by the TPU compiler's final schedule."""

    def millions(cycles: float) -> str:
        return f"{cycles / 1e6:.1f} M"

    classes = {
        name: millions(scales["larger_of"]) for name, scales in row["classes"].items()
    }
    return [
        {
            "slice": row["topology"],
            "device": "",
            "step": row["case"],
            "cycles, estimated": number(row["value"]),
            "share of peak": f"{row['share_of_peak']:.0%}",
            "larger of bundles and bytes": millions(row["larger_of"]),
            "its share of peak": f"{row['ideal'] / row['larger_of']:.0%}",
            **{name: classes.get(name, "") for name in SCHEDULE_CLASSES},
            "memory": f"{row['memory_bytes'] / 2**30:.1f} GiB",
            "versions": versions(row),
        }
    ]


def _gpu_profile(row: Row) -> list[dict[str, str]]:
    """Returns the line of the kernels of a step."""
    kernels = {kind: f"{number(time)} us" for kind, time in row["classes"].items()}
    return [
        {
            "case": row["case"],
            "device": device(row),
            "all kernels": f"{number(row['value'])} {row['unit']}",
            **kernels,
            "versions": versions(row),
        }
    ]


def _speedrun(row: Row) -> list[dict[str, str]]:
    """Returns the line of an entry of a speedrun."""
    return [
        {
            "time": f"{number(row['value'])} s",
            "change": row["case"],
            "track": row["track"],
            "date": row["date"],
            "device": device(row),
            "steps": number(row["steps"]),
            "held-out loss": f"{row['masked_lm_loss']:.3f}",
            "target": f"{row['target']:.3f}",
            "seeds": ", ".join(map(str, row["seeds"])),
            "corpus": f"`{row['corpus']}`",
            "log": f"`{row['log']}`",
            "versions": versions(row),
        }
    ]


def _loss_curve(row: Row) -> list[dict[str, str]]:
    """Returns the line of a variant of benchmarks.time_to_loss."""
    steps = row["curves"][0]["steps"][-1]

    def last(metric: str) -> str:
        return ", ".join(f"{curve[metric][-1]:.3f}" for curve in row["curves"])

    probes = [name for name in row["curves"][0] if name.startswith("probe/")]
    at_common = ", ".join(f"{loss:.3f}" for loss in row["losses_at_common"])
    return [
        {
            "variant": row["case"],
            "device": device(row),
            "step": f"{1000 * row['step_seconds']:.0f} ms",
            "pairs in a step": f"{row['pairs']:.1f}",
            "text": f"{row['text_share']:.0%} of tokens",
            "steps": f"{steps:,}",
            "time of the steps": f"{steps * row['step_seconds']:.0f} s",
            "held-out masked-LM loss": f"{number(row['value'])} nats",
            "loss of each seed": last("masked_lm_loss"),
            "next-sentence accuracy": (
                f"{last('next_sentence_accuracy')} (majority"
                f" {row['next_sentence_majority']:.3f})"
            ),
            "masked-LM loss after equal time": (
                f"{at_common} after {row['common_seconds']:.0f} s"
            ),
            **{
                PROBES[name]: ", ".join(
                    f"{curve[name][-1]:.1f}" for curve in row["curves"]
                )
                for name in probes
            },
            "versions": versions(row),
        }
    ]


def _pretraining(row: Row) -> list[dict[str, str]]:
    """Returns the lines of a run of train, one for each evaluation."""
    return [
        {
            "run": row["case"],
            "device": device(row),
            "step": f"{line['step']:,}",
            "time": f"{line['seconds']:.0f} s",
            "tokens": f"{line['tokens'] / 1e6:,.0f} M",
            "FLOPs": f"{line['flops']:.1e}",
            "held-out masked-LM loss": f"{line['masked_lm_loss']:.3f} nats",
            "next-sentence accuracy": f"{line['next_sentence_accuracy']:.3f}",
            "versions": versions(row),
        }
        for line in row["evaluations"]
    ]


KINDS = {
    "pretraining": _pretraining,
    "tuning": _tuning,
    "tuning_parity": _tuning_parity,
    "preflight": _preflight,
    "tpu_schedule": _tpu_schedule,
    "gpu_profile": _gpu_profile,
    "speedrun": _speedrun,
    "loss_curve": _loss_curve,
}
# Columns of the results of probes; in percent.
PROBES = {"probe/blimp": "BLiMP accuracy", "probe/stsb": "STS-B Spearman"}
# Columns of the table of schedules; hlo.CLASSES without an import of JAX.
SCHEDULE_CLASSES = (
    *("matmul", "attention", "head", "embeddings", "elementwise", "dropout"),
    *("optimizer", "copies"),
)
# Benchmarks whose values have all digits.
EXACT = ("hidden_states", "sts", "d2l", "tuning_losses")


def batch(report: Row, phase: Row) -> str:
    batch = phase["global_batch_size"] // report["devices"]
    return f"{batch} x {phase['sequence_length']}"


def device(row: Row) -> str:
    device = row.get("device")
    return device if device and device != "cpu" else f"{row['cpu_count']} CPU cores"


def versions(row: Row) -> str:
    return ", ".join(
        f"{VERSIONS[name]} {version}"
        for name, version in row["versions"].items()
        if name in VERSIONS
    )


# Other numbers of a row that tables show, and how.
MORE: dict[str, Callable[[Any], str]] = {
    "text_share": lambda value: f"{value:.1%} of tokens are text",
    "accuracy": lambda value: f"accuracy {value:.3f}",
    "parameter_bytes": lambda value: f"{value / 1e6:.1f} MB of parameters",
    "steps": lambda value: f"{value:,} steps",
    "seconds": lambda value: f"{value:,} s",
    "masked_lm_loss_of_the_last_steps": lambda value: (
        f"masked-LM loss of the last steps {value:.2f} nats"
    ),
    "next_sentence_accuracy_of_the_last_steps": lambda value: (
        f"next-sentence accuracy of the last steps {value:.1%}"
    ),
    "cpu_seconds": lambda value: f"{value:.1f} s of CPU time",
    "stages": lambda value: ", ".join(f"{k} {v:.1f} s" for k, v in value.items() if v),
    "pearson": lambda value: f"Pearson {value}",
    "peer_pearson": lambda value: f"Pearson of the reference {value}",
    "largest_difference": lambda value: f"vectors differ by at most {value:g}",
    "max_length": lambda value: f"at most {value} tokens",
    "by_state": lambda values: (
        "embeddings, then layers: " + ", ".join(f"{value:.1e}" for value in values)
    ),
    "unigram_entropy": lambda value: f"entropy of word frequencies {value}",
    "last_steps": lambda value: f"last 10 steps {value}",
    "peer_last_steps": lambda value: f"of the reference {value}",
    "peer_loss_with_padding": lambda value: (
        f"loss of the reference with unused slots {value}"
    ),
    "terms": lambda values: ", ".join(f"{k} {v}" for k, v in values.items()),
    "worst_visit": lambda value: f"in the worst visit {value:.3f}",
}


def _more(row: Row) -> str:
    return ", ".join(
        words(row[key]) for key, words in MORE.items() if row.get(key) is not None
    )


def number(value: Any) -> str:
    """Returns a number with three significant digits, and all digits before a point."""
    if value is None:
        return ""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def all_digits(value: Any) -> str:
    return "" if value is None else f"{value:,}"
