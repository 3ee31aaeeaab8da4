"""Stores and ranks the results of fine-tuning runs, and writes those of a sweep."""

import dataclasses
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import rich.box
import rich.console
import rich.table

from bert_jax import small_files, storage
from bert_jax.distributed import multihost
from bert_jax.errors import AllDivergedError, CorruptError
from bert_jax.finetuning import tuned_model
from bert_jax.finetuning.setup import Setup, Split
from bert_jax.finetuning.tasks.base import Examples
from bert_jax.monitoring.progress import Progress, format_duration

RESULT_FILE = "result.json"
SUMMARY_FILE = "results.json"
PREDICTIONS_DIRECTORY = "predictions"
CURVES_FILE = "dev_curves.png"
CONFUSION_FILE = "confusion.png"
MAX_CLASSES = 40  # a larger confusion matrix is unreadable, and is not drawn
MAX_PRINTED = 16  # so are the numbers in one of more classes


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a run."""

    learning_rate: float
    seed: int
    diverged: str  # the reason if the run diverged, otherwise ""
    # the step with the best dev metric; 0 if the run diverged before its first
    # evaluation
    best_step: int
    metrics: dict[str, float]  # the dev metrics at that step
    history: tuple[dict[str, float], ...]  # {"step": ..., metrics} of each evaluation


def directory_of(workdir: str, learning_rate: float, seed: int) -> str:
    """Returns the directory of one run of a sweep."""
    return f"{workdir}/runs/lr{learning_rate:g}_seed{seed}"


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


def read_all(workdir: str) -> list[Result]:
    """Returns the results of all runs of a sweep, by learning rate and seed."""
    found = [read(str(path)) for path in Path(workdir, "runs").iterdir()]
    done = [result for result in found if result is not None]
    return sorted(done, key=lambda result: (-result.learning_rate, result.seed))


def best(history: Sequence[dict[str, float]], metric: str) -> dict[str, float]:
    """Returns the first entry with the highest metric; {} if there is none."""
    return max(history, key=lambda entry: worth(entry, metric), default={})


def worth(found: dict[str, Any], metric: str) -> float:
    """Returns the value that ranks metrics; NaN and a missing value rank last."""
    value = found.get(metric)  # metrics.jsonl has null for NaN
    return value if value is not None and math.isfinite(value) else -math.inf


def best_run(results: Sequence[Result], metric: str) -> Result:
    evaluated = [result for result in results if result.best_step]
    if not evaluated:
        raise AllDivergedError(
            f"every run diverged before its first evaluation: {results[0].diverged}"
        )
    return max(evaluated, key=lambda result: worth(result.metrics, metric))


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
    by_rate: dict[float, list[float]] = {}
    for result in results:
        if metric in result.metrics:
            by_rate.setdefault(result.learning_rate, []).append(result.metrics[metric])
    for rate, values in by_rate.items():
        if len(values) > 1:
            console.print(
                f"learning rate {rate:g}: {metric} {np.mean(values):.4f}, standard"
                f" deviation {np.std(values, ddof=1):.4f} over {len(values)} seeds"
            )


def write_best(
    setup: Setup,
    workdir: str,
    results: Sequence[Result],
    best: Result,
    params: Any,
    seconds: float,
) -> None:
    """Writes a model, its predictions, the plots and results.json; prints all runs.

    Args:
      params: the best parameters of the best run.
      seconds: how long this call took.
    """
    metric = setup.config.metric

    def predict(split: Split) -> Any:
        doing = f"predicting {split.spec}"
        with Progress(doing, len(split.features), "rows") as progress:
            return setup.predict(params, split, progress.add)

    predicted = [predict(split) for split in setup.datasets.dev]
    tests = [predict(split) for split in setup.datasets.test]
    # Process 0 writes the model, and holds only its shards of split parameters.
    whole = jax.tree.map(lambda x: jax.reshard(x, jax.P()), params)

    def write_all() -> str:
        scores = write_predictions(setup, workdir, predicted, tests)
        tuned_model.write(setup, whole, workdir, scores)
        plot_curves(workdir, results, metric)
        dev = setup.datasets.dev[0].examples
        plot_confusion(workdir, dev, predicted[0], setup.datasets.names)
        content = {
            "metric": metric,
            "best": {"learning_rate": best.learning_rate, "seed": best.seed},
            "dev": scores,
            "runs": [dataclasses.asdict(result) for result in results],
        }
        small_files.write_json(Path(workdir) / SUMMARY_FILE, content)
        print_table(results, metric)
        print(summary(setup, workdir, best, scores, seconds))
        return ""

    multihost.agree("end", write_all)  # all processes wait for process 0


def summary(
    setup: Setup,
    workdir: str,
    best: Result,
    scores: dict[str, dict[str, float]],
    seconds: float,
) -> str:
    """Returns the last lines of a sweep: its best run, files and next command."""
    metric = setup.config.metric
    sets = "; ".join(
        f"{spec}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        for spec, found in scores.items()
    )
    model = shlex.quote(f"--model={workdir}/{tuned_model.DIRECTORY}")
    line = shlex.quote(setup.config.task.form.example)
    return (
        f"Best by {metric}: learning rate {best.learning_rate:g}, seed {best.seed},"
        f" step {best.best_step:,} ({format_duration(seconds)} in this call). {sets}."
        f"{_majority(setup.datasets.dev[0]) if metric == 'accuracy' else ''} The"
        f" model is in {workdir}/{tuned_model.DIRECTORY}, predictions in"
        f" {workdir}/{PREDICTIONS_DIRECTORY}, curves in"
        f" {workdir}/{CURVES_FILE}. Next, predict the lines of a file or,"
        f" with --input=-, of standard input:\n  echo {line} | python -m"
        f" bert_jax.predict {model} --input=-"
    )


def _majority(dev: Split) -> str:
    """Returns the accuracy of the most frequent label; "" without classes."""
    labels = getattr(dev.examples, "labels", None)
    if labels is None or labels.dtype != np.int32:
        return ""
    share = np.bincount(labels).max() / len(labels)
    return f" The most frequent label of {dev.spec} alone has accuracy {share:.4g}."


def write_predictions(
    setup: Setup, workdir: str, dev: list[Any], test: list[Any]
) -> dict[str, dict[str, float]]:
    """Writes the predictions of all sets; returns the metrics of dev sets by spec."""
    task, names = setup.config.task, setup.datasets.names
    scores = {}
    for split, predicted, directory in _named(workdir, "dev", setup.datasets.dev, dev):
        split.examples.write(directory, predicted, names)
        scores[split.spec] = task.evaluate(split.examples, predicted, names)
    tests = _named(workdir, "test", setup.datasets.test, test)
    for i, (split, predicted, directory) in enumerate(tests):
        split.examples.write(directory, predicted, names)
        task.write_submission(directory, i, split.examples, predicted, names)
    return scores


def _named(
    workdir: str, kind: str, splits: Sequence[Split], all_predicted: list[Any]
) -> Iterator[tuple[Split, Any, Path]]:
    """Yields data sets with their predictions, and a new directory for each."""
    for i, (split, predicted) in enumerate(zip(splits, all_predicted, strict=True)):
        name = kind if len(splits) == 1 else f"{kind}{i + 1}"
        directory = Path(workdir) / PREDICTIONS_DIRECTORY / name
        directory.mkdir(parents=True, exist_ok=True)
        yield split, predicted, directory


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
    """Plots which shares of each class have which prediction, if there are classes."""
    import sklearn.metrics  # slow to import, see metrics.py
    from matplotlib.figure import Figure

    pairs = examples.class_pairs(predicted, names)
    if pairs is None or len(names) > MAX_CLASSES:
        return None
    size = max(4.0, 0.35 * len(names) + 2)
    figure = Figure(figsize=(size, size), layout="constrained")
    sklearn.metrics.ConfusionMatrixDisplay.from_predictions(
        *pairs,
        labels=list(names),
        normalize="true",
        include_values=len(names) <= MAX_PRINTED,
        values_format=".2f",
        xticks_rotation="vertical",
        cmap="Blues",
        ax=figure.subplots(),
        colorbar=False,
    )
    return _save(figure, workdir, CONFUSION_FILE)


def _save(figure: Any, workdir: str, name: str) -> Path:
    path = Path(workdir) / name
    storage.write_with(
        str(path), lambda tmp: figure.savefig(tmp, dpi=120, format="png")
    )
    return path
