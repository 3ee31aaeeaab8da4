"""Stores and ranks the results of fine-tuning runs; prints and plots them."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
import rich.console
import rich.table

from bert_jax import small_files, storage
from bert_jax.errors import CorruptError
from bert_jax.finetuning.data.examples import Examples

RESULT_FILE = "result.json"
CURVES_FILE = "dev_curves.png"
CONFUSION_FILE = "confusion.png"
FEW_CLASSES = 8  # a matrix of at most this size stays readable with zeros printed
MAX_CLASSES = 40  # a larger confusion matrix is unreadable, and is not drawn


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
      learning_rate, seed: the learning rate and seed of the run.
      diverged: the reason if the run diverged, otherwise "".
      best_step: the step with the best dev metric; 0 if the run diverged before its
        first evaluation.
      metrics: the dev metrics at that step.
      history: {"step": ..., metrics} of each evaluation.
    """

    learning_rate: float
    seed: int
    diverged: str
    best_step: int
    metrics: dict[str, float]
    history: tuple[dict[str, float], ...]


def runs_directory(workdir: str) -> str:
    """Returns the directory of the runs of a sweep."""
    return f"{workdir}/runs"


def directory_of(workdir: str, learning_rate: float, seed: int) -> str:
    """Returns the directory of one run of a sweep."""
    return f"{runs_directory(workdir)}/lr{learning_rate:g}_seed{seed}"


def write(workdir: str, result: Result) -> None:
    """Writes the result of a completed run into its directory."""
    small_files.write_json(Path(workdir) / RESULT_FILE, dataclasses.asdict(result))


def read(workdir: str) -> Result | None:
    """Returns the result of a completed run, None if it is not complete."""
    path = Path(workdir) / RESULT_FILE
    if not path.is_file():
        return None
    remedy = f"remove {workdir} to repeat the run"
    values: Any = small_files.read_json(path, remedy)
    try:
        return Result(**values | {"history": tuple(values["history"])})
    except (TypeError, KeyError):
        raise CorruptError(f"{path} is corrupt; {remedy}") from None


def read_all(directory: str) -> list[Result]:
    """Returns the results of all runs below a directory, by learning rate and seed."""
    found = [read(str(path)) for path in Path(directory).iterdir()]
    done = [result for result in found if result is not None]
    return sorted(done, key=lambda result: (-result.learning_rate, result.seed))


def best(history: Sequence[dict[str, float]], metric: str) -> dict[str, float]:
    """Returns the first entry with the highest metric; {} if there is none."""
    return max(history, key=lambda entry: worth(entry, metric), default={})


def worth(found: dict[str, Any], metric: str) -> float:
    """Returns the value that ranks metrics; NaN and a missing value rank last."""
    value = found.get(metric)  # metrics.jsonl has null for NaN
    return value if value is not None and math.isfinite(value) else -math.inf


def print_table(results: Sequence[Result], metric: str) -> None:
    """Prints one line per run, and mean and standard deviation over seeds."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    names = dict.fromkeys(name for result in results for name in result.metrics)
    others = [name for name in names if name != metric]
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
    """Plots the confusion matrix of a dev set; returns the path of the file.

    The result is None if the task has no single classes, or more than MAX_CLASSES.

    Args:
      predicted: the predictions for the examples, from `Task.predict`.
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
