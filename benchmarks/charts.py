"""Draws the charts of the performance page as SVG, from rows of benchmarks/results."""

import io
import re
import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

WIDTH = 9.0  # inches; the text of the page is about as wide
Row = dict[str, Any]


def peers(rows: Sequence[Row]) -> Figure:
    """Draws the ratio of each row to its peer as a bar, on a logarithmic scale.

    Args:
      rows: rows with a peer, a ratio and a rate as unit, so that more is better.
    """
    figure, axes = _figure(0.65 * len(rows))
    ratios = [row["ratio"] for row in rows]
    for kind in dict.fromkeys(row["benchmark"] for row in rows):
        places = [i for i, row in enumerate(rows) if row["benchmark"] == kind]
        # A bar starts at the peer's rate, 1; one to the left of it is slower.
        lengths = [ratios[i] - 1 for i in places]
        axes.barh(places, lengths, left=1, height=0.6, label=kind)
    for i, ratio in enumerate(ratios):
        side = "left" if ratio >= 1 else "right"
        axes.text(ratio, i, f" {ratio:.3g}x ", va="center", ha=side)
    labels = [
        "\n".join([row["case"], *textwrap.wrap(f"against {row['peer']}", 48)])
        for row in rows
    ]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(0.8, 0.7 * min(ratios)), 1.6 * max(ratios))
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("rate, as a multiple of the peer's")
    if len({row["benchmark"] for row in rows}) > 1:
        _place_legend(axes)
    return figure


def share_of_peak(rows: Sequence[Row]) -> Figure:
    """Draws MFU over the batch size: a line for each size, length and dtype.

    Args:
      rows: rows with an MFU and a case such as "base 512x128 bfloat16".
    """
    figure, axes = _figure(2.6)
    points: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        name, batch = batch_of(row["case"])
        points.setdefault(name, {}).setdefault(batch, []).append(row["mfu"])
    for i, (name, by_batch) in enumerate(points.items()):
        # Lines may be close, so their texts alternate between the left and the right.
        side, ha = (-8, "right") if i % 2 else (8, "left")
        batches = sorted(by_batch)
        best = [100 * max(by_batch[batch]) for batch in batches]
        axes.plot(batches, best, "o-", label=name)
        for batch, share in zip(batches, best, strict=True):
            offset = dict(xytext=(side, 0), textcoords="offset points", ha=ha)
            axes.annotate(f"{share:.0f}%", (batch, share), va="center", **offset)
    used = sorted({batch for by_batch in points.values() for batch in by_batch})
    axes.set_xscale("log", base=2)
    axes.set_xticks(used, [f"{batch:,}" for batch in used])
    axes.minorticks_off()
    axes.margins(x=0.15)
    axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter("{x:g}%")
    axes.set_xlabel("sequences in a batch")
    axes.set_ylabel("MFU")
    _place_legend(axes)
    return figure


def step_classes(cases: dict[str, dict[str, float]]) -> Figure:
    """Draws where the time of a step goes as stacked bars.

    Args:
      cases: cycles by class of operation, by the name of the case.
    """
    figure, axes = _figure(max(0.4 * len(cases), 1.2))  # room for the legend
    classes = dict.fromkeys(kind for cycles in cases.values() for kind in cycles)
    left = [0.0] * len(cases)
    for i, kind in enumerate(classes):
        total = [sum(cycles.values()) for cycles in cases.values()]
        shares = [
            100 * cycles.get(kind, 0.0) / whole
            for cycles, whole in zip(cases.values(), total, strict=True)
        ]
        color = f"C{i}"
        axes.barh(range(len(cases)), shares, 0.7, left, color=color, label=kind)
        for y, (start, share) in enumerate(zip(left, shares, strict=True)):
            if share >= 4:  # otherwise the text is wider than the bar
                middle = start + share / 2
                place = dict(va="center", ha="center", color="white", fontsize=8)
                axes.text(middle, y, f"{share:.0f}%", **place)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(cases)), list(cases))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_formatter("{x:g}%")
    axes.set_xlabel("share of the step")
    _place_legend(axes)
    return figure


def loss_curves(rows: Sequence[Row]) -> Figure:
    """Draws the held-out loss over the seconds of training: a line for each seed.

    Args:
      rows: rows of benchmarks.time_to_loss, "loss_curve".
    """
    figure, axes = _figure(3.2)
    for i, row in enumerate(rows):
        for seed, curve in enumerate(row["curves"]):
            seconds = [steps * row["step_seconds"] for steps in curve["steps"]]
            label = None if seed else row["case"]  # one for all seeds
            losses = curve["masked_lm_loss"]
            axes.plot(seconds, losses, ".-", color=f"C{i}", label=label, linewidth=1)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of training steps")
    axes.set_ylabel("held-out masked-LM loss, nats")
    _place_legend(axes)
    return figure


def batch_of(case: str) -> tuple[str, int]:
    """Splits "base 512x128 bfloat16" into ("base, 128 tokens, bfloat16", 512).

    Raises:
      ValueError: if the case does not have this form.
    """
    found = re.fullmatch(r"(\w+) (\d+)x(\d+) (.+)", case)
    if not found:
        raise ValueError(f"{case!r} is not SIZE BATCHxLENGTH DTYPE")
    size, batch, length, dtype = found.groups()
    return f"{size}, {length} tokens, {dtype}", int(batch)


def svg(figure: Figure, title: str) -> str:
    """Returns the figure as a file of SVG; equal figures give equal text."""
    text = io.StringIO()
    # Text stays text: it can be selected and found, and the file is small.
    style = {"svg.hashsalt": "bert_jax", "svg.fonttype": "none"}
    with matplotlib.rc_context(style):
        figure.savefig(text, format="svg", metadata={"Date": None}, bbox_inches="tight")
    head, _, image = text.getvalue().partition("<svg")
    label = f' role="img" aria-label="{escape(title, quote=True)}"'
    # Trailing spaces would differ from what an editor saves.
    return re.sub(r"[ \t]+$", "", f"{head}<svg{label}{image}", flags=re.M)


def _figure(height: float) -> tuple[Figure, Any]:
    """Returns a figure whose axes have this height in inches, and its axes."""
    figure = Figure(figsize=(WIDTH, height + 0.8), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _place_legend(axes: Any) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
