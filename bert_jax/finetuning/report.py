"""Reports a sweep: its inputs, a table of its runs, and plots of the dev metrics."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import rich.box
import rich.console
import rich.table

from bert_jax import storage
from bert_jax.config import ModelConfig
from bert_jax.finetuning.data.datasets import Datasets
from bert_jax.finetuning.data.examples import Examples
from bert_jax.finetuning.results import Result
from bert_jax.finetuning.setup import Setup, Start

# Attributes that count lost data, of features or examples -> their descriptions.
LOSSES = {
    "num_truncated": "rows truncated to the sequence length",
    "num_cut": "words beyond the sequence length",
    "num_dropped": "questions dropped, no answer in their paragraph",
    "num_unlabelled": "examples skipped, no label",
    "num_lost_lines": "lines skipped, wrong number of columns",
    "num_empty": "sentences skipped, no words",
    "num_mended": "wrong answer offsets, corrected",
    "num_lost": "answers not found in their paragraph",
}
CURVES_FILE = "dev_curves.png"
CONFUSION_FILE = "confusion.png"
LISTED_CLASSES = 20  # of more classes, the smallest and the largest are reported
FEW_CLASSES = 8  # a matrix of at most this size stays readable with zeros printed
MAX_CLASSES = 40  # a larger confusion matrix is unreadable, and is not drawn


def describe(setup: Setup, start: Start, workdir: str) -> str:
    """Returns the first lines of a sweep: its model, task, data and devices."""
    config, datasets = setup.config, setup.datasets
    model = setup.encoder.config
    part = "sizes and tokenizer only" if start.is_from_scratch else "its weights"
    names = f", {len(datasets.names)} labels" if datasets.names else ""
    notes = [*setup.encoder.notes, *class_counts(datasets), *losses(datasets)]
    sizes = [
        split.examples.size(len(split.features))
        for split in (datasets.train, *datasets.dev)
    ]
    teacher = []
    if setup.teacher:
        layers = _layers(setup.teacher.config)
        teacher = [f"teacher: {config.distill.teacher}, {layers}"]
    lines = [
        f"model:  {start.model}, {part}; {_layers(model)} of {model.hidden_size}",
        *teacher,
        f"task:   {config.task.kind}{names}, rows of at most"
        f" {config.sequence_length} tokens, best by {config.metric}",
        f"data:   {sizes[0]} to train on, dev {', '.join(sizes[1:])}",
        *(f"        {note}" for note in notes),
        f"device: {jax.device_count()} x {jax.devices()[0].device_kind}, workdir"
        f" {workdir}",
    ]
    return "\n".join(lines)


def _layers(model: ModelConfig) -> str:
    number = model.num_hidden_layers
    return f"{number} layer{'s' if number > 1 else ''}"


def class_counts(datasets: Datasets) -> list[str]:
    """Returns a line for each labelled set with the number of examples per class."""
    found = []
    for split in (datasets.train, *datasets.dev):
        counts = split.examples.class_counts(datasets.names)
        shown = [f"{name} {count:,}" for name, count in counts]
        if len(shown) > LISTED_CLASSES:
            counts.sort(key=lambda item: -item[1])
            (most, highest), (least, lowest) = counts[0], counts[-1]
            shown = [f"from {least} {lowest:,} to {most} {highest:,}"]
        if shown:
            found.append(f"{split.spec}: {', '.join(shown)}")
    return found


def losses(datasets: Datasets) -> list[str]:
    """Returns a line for each data set that was truncated or is incomplete."""
    found = []
    for split in (datasets.train, *datasets.dev, *datasets.test):
        parts = [
            f"{count:,} {words}"
            for name, words in LOSSES.items()
            for holder in (split.features, split.examples)
            if (count := getattr(holder, name, 0))
        ]
        if parts:
            found.append(f"{split.spec}: {', '.join(parts)}")
    return found


def print_table(results: Sequence[Result], metric: str) -> None:
    """Prints one line per run, and mean and standard deviation over seeds."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    others = [name for name in _metric_names(results) if name != metric]
    for name in ("learning rate", "seed", "best step", metric, *others):
        table.add_column(name, justify="right")
    for result in results:
        values = [
            f"{result.metrics[name]:.4f}" if name in result.metrics else "diverged"
            for name in (metric, *others)
        ]
        is_late = bool(result.diverged and result.best_step)
        table.add_row(
            f"{result.learning_rate:g}",
            str(result.seed),
            f"{result.best_step:,}{' (diverged later)' if is_late else ''}",
            *values,
        )
    console = rich.console.Console(soft_wrap=True, highlight=False)
    console.print(table)
    for rate, values in _by_learning_rate(results, metric).items():
        if len(values) > 1:
            console.print(
                f"learning rate {rate:g}: {metric} {np.mean(values):.4f}, standard"
                f" deviation {np.std(values, ddof=1):.4f} over {len(values)} seeds"
            )


def plot_curves(workdir: str, results: Sequence[Result], metric: str) -> Path:
    """Plots the dev metric of every run against the step."""
    from matplotlib.figure import Figure  # slow to import
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for result in results:
        axes.plot(
            [line["step"] for line in result.history],
            [line[metric] for line in result.history],
            marker="o",
            markersize=3,
            label=f"{result.learning_rate:g}, seed {result.seed}",
        )
    axes.set(xlabel="step", ylabel=metric, title="Dev set")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, title="learning rate")
    return _save(figure, workdir, CURVES_FILE)


def plot_confusion(
    workdir: str, examples: Examples, predicted: Any, names: Sequence[str]
) -> Path | None:
    """Plots the confusion matrix of a dev set.

    Args:
      workdir: directory to write the plot to.
      examples: examples of the dev set.
      predicted: their predictions, from `Task.predict`.
      names: class names.

    Returns:
      The file's path, or None if the task has no single classes or more than
      MAX_CLASSES of them.
    """
    import sklearn.metrics  # slow to import, see metrics.py
    from matplotlib.figure import Figure

    pairs = examples.class_pairs(predicted, names)
    if pairs is None or len(names) > MAX_CLASSES:
        return None
    labels_N, predicted_N = pairs
    counts = sklearn.metrics.confusion_matrix(labels_N, predicted_N, labels=list(names))
    size = max(4.0, 0.35 * len(names) + 2)
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, j in np.ndindex(*counts.shape):
        if counts[i, j] or len(names) <= FEW_CLASSES:
            colour = "white" if shares[i, j] > 0.5 else "black"
            axes.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", color=colour)
    ticks = np.arange(len(names))
    axes.set_xticks(ticks, names, rotation=45, ha="right")
    axes.set_yticks(ticks, names)
    axes.set(xlabel="predicted", ylabel="label", title="Dev set")
    return _save(figure, workdir, CONFUSION_FILE)


def _metric_names(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(name for r in results for name in r.metrics))


def _by_learning_rate(
    results: Sequence[Result], metric: str
) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for result in results:
        if metric in result.metrics:
            values = found.setdefault(result.learning_rate, [])
            values.append(result.metrics[metric])
    return found


def _save(figure: Any, workdir: str, name: str) -> Path:
    path = Path(workdir) / name
    storage.write_with(
        str(path), lambda tmp: figure.savefig(tmp, dpi=120, format="png")
    )
    return path
