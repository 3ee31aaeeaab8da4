"""Stores and ranks the results of fine-tuning runs, and renders those of a sweep."""

import dataclasses
import math
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
import rich.console
import rich.table

from bert_jax import digests, small_files, storage
from bert_jax.errors import AllDivergedError, CorruptError
from bert_jax.finetuning.setup import Setup, Split
from bert_jax.finetuning.tasks.base import Examples
from bert_jax.interop import files, huggingface_write
from bert_jax.monitoring.progress import format_duration

Scores = dict[str, dict[str, float]]  # the metrics of dev sets, by spec
MODEL_DIRECTORY = "model"
RESULT_FILE = "result.json"
SUMMARY_FILE = "results.json"
PREDICTIONS_DIRECTORY = "predictions"
CURVES_FILE = "dev_curves.png"
CONFUSION_FILE = "confusion.png"
MAX_CLASSES = 40  # a larger confusion matrix is unreadable, and is not drawn
MAX_PRINTED = 16  # so are the numbers in one of more classes
# The front matter is for the Hugging Face Hub.
METADATA = "---\nlibrary_name: transformers\ntags:\n- bert\n"
LOADING = """\
```python
from transformers import {cls}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")
model = {cls}.from_pretrained("DIRECTORY")
```

or `python -m bert_jax.predict --model=DIRECTORY --input=FILE`. DIRECTORY is the
directory of this file."""
LENGTH = "The model was fine-tuned on rows of up to {length} tokens. {longer}"
CUT = "Longer texts are truncated at the end."
WINDOWS = "A longer paragraph is split into overlapping rows."
PAIRS = (
    "A pair that is too long loses tokens from the end of the longer text; if both are"
    " equally long, from the second (google-research/bert run_classifier.py)."
)


@dataclasses.dataclass(frozen=True)
class Result:
    learning_rate: float
    seed: int
    diverged: str  # the reason if the run diverged, otherwise ""
    # the step with the best dev metric; 0 if the run diverged before its first
    # evaluation
    best_step: int
    metrics: dict[str, float]  # the dev metrics at that step
    history: tuple[dict[str, float], ...]  # {"step": ..., metrics} of each evaluation


def directory_of(workdir: str, learning_rate: float, seed: int) -> str:
    return f"{workdir}/runs/lr{learning_rate:g}_seed{seed}"


def write(workdir: str, result: Result) -> None:
    small_files.write_json(Path(workdir) / RESULT_FILE, dataclasses.asdict(result))


def read(workdir: str) -> Result | None:
    """Returns the result of a completed run, None if it is not complete."""
    path = Path(workdir) / RESULT_FILE
    if not path.is_file():
        return None
    remedy = f"remove {workdir} to repeat the run"
    values: Any = small_files.read_json(path, remedy)
    try:
        metrics = without_nulls(values["metrics"])
        history = tuple(map(without_nulls, values["history"]))
        return Result(**values | {"metrics": metrics, "history": history})
    except (TypeError, KeyError, AttributeError):
        raise CorruptError(f"{path} is corrupt; {remedy}") from None


def without_nulls(metrics: dict[str, float | None]) -> dict[str, float]:
    """Returns metrics with NaN for null, which files have in its place."""
    return {name: math.nan if x is None else x for name, x in metrics.items()}


def read_all(workdir: str) -> list[Result]:
    """Returns the results of all runs of a sweep, by learning rate and seed."""
    runs = (read(str(path)) for path in Path(workdir, "runs").iterdir())
    return sorted(filter(None, runs), key=lambda run: (-run.learning_rate, run.seed))


def best(history: Sequence[dict[str, float]], metric: str) -> dict[str, float]:
    """Returns the first entry with the highest metric; {} if there is none."""
    return max(history, key=lambda entry: worth(entry, metric), default={})


def worth(metrics: dict[str, float], metric: str) -> float:
    """Returns the value that ranks metrics; NaN and a missing value rank last."""
    value = metrics.get(metric, math.nan)
    return value if math.isfinite(value) else -math.inf


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
    found = (name for result in results for name in result.metrics)
    names = dict.fromkeys([metric, *found])
    for name in ("learning rate", "seed", "best step", *names):
        table.add_column(name, justify="right")
    for result in results:
        values = [
            f"{result.metrics[name]:.4f}" if name in result.metrics else "diverged"
            for name in names
        ]
        is_late = bool(result.diverged and result.best_step)
        table.add_row(
            f"{result.learning_rate:g}",
            str(result.seed),
            f"{result.best_step:,}{' (diverged later)' if is_late else ''}",
            *values,
        )
    # A narrow table would lose the ends of its words.
    console = rich.console.Console(width=1000, soft_wrap=True, highlight=False)
    console.print(table)
    rates = dict.fromkeys(result.learning_rate for result in results)
    if len(rates) > 1 and best_run(results, metric).learning_rate == max(rates):
        console.print("The best learning rate is the highest; try higher ones, too.")
    for rate in rates:
        of_rate = (x.metrics for x in results if x.learning_rate == rate)
        values = [metrics[metric] for metrics in of_rate if metric in metrics]
        if len(values) > 1:
            console.print(
                f"learning rate {rate:g}: {metric} {np.mean(values):.4f}, standard"
                f" deviation {np.std(values, ddof=1):.4f} over {len(values)} seeds"
            )


def summary(
    setup: Setup, workdir: str, best: Result, scores: Scores, seconds: float
) -> str:
    """Returns the last lines of a sweep: its best run, files and next command."""
    metric = setup.config.metric
    sets = "; ".join(
        f"{spec}: " + ", ".join(f"{name} {value:.4g}" for name, value in of_set.items())
        for spec, of_set in scores.items()
    )
    model = shlex.quote(f"--model={workdir}/{MODEL_DIRECTORY}")
    line = shlex.quote(setup.config.task.form.example)
    return (
        f"Best by {metric}: learning rate {best.learning_rate:g}, seed {best.seed},"
        f" step {best.best_step:,} ({format_duration(seconds)} in this call). {sets}."
        f"{_majority(setup.datasets.dev[0]) if metric == 'accuracy' else ''} The"
        f" model is in {workdir}/{MODEL_DIRECTORY}, predictions in"
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
) -> Scores:
    """Writes the predictions of all sets; returns the metrics of dev sets."""
    task, names, scores = setup.config.task, setup.datasets.names, {}
    parent = Path(workdir) / PREDICTIONS_DIRECTORY
    shutil.rmtree(parent, ignore_errors=True)  # those of an earlier model and its sets
    for kind, splits, predictions in (
        ("dev", setup.datasets.dev, dev),
        ("test", setup.datasets.test, test),
    ):
        for i, (split, predicted) in enumerate(zip(splits, predictions, strict=True)):
            name = kind if len(splits) == 1 else f"{kind}{i + 1}"
            directory = parent / name
            directory.mkdir(parents=True, exist_ok=True)
            split.examples.write(directory, predicted, names)
            if kind == "dev":
                scores[split.spec] = task.evaluate(split.examples, predicted, names)
            else:
                task.write_submission(directory, i, split.examples, predicted, names)
    return scores


def write_model(
    setup: Setup, params: Any, workdir: str, best: Result, scores: Scores
) -> None:
    """Writes the model of a run, the best, in the place of an earlier one."""
    target = Path(workdir) / MODEL_DIRECTORY
    old = target.with_name(f".{MODEL_DIRECTORY}.unfinished.old")
    # A killed process leaves its unfinished directory.
    for unfinished in target.parent.glob(f".{MODEL_DIRECTORY}.unfinished.*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    with files.new_directory(target) as tmp:
        tokenizer, length = setup.encoder.tokenizer, setup.config.sequence_length
        huggingface_write.write_model(
            tmp, params, setup.model, setup.head, tokenizer, length
        )
        setup.config.task.write_settings(tmp, setup.datasets.train.examples)
        digests.write_sums(tmp)
        write_card(tmp, setup, best, scores)  # has no digest: users edit it
        if target.exists():
            os.replace(target, old)
    shutil.rmtree(old, ignore_errors=True)


def write_card(directory: Path, setup: Setup, best: Result, scores: Scores) -> None:
    """Writes README.md into the directory of a fine-tuned model."""
    recipe = dataclasses.replace(setup.config.recipe, learning_rate=best.learning_rate)
    config = dataclasses.replace(setup.config, recipe=recipe)
    task, names = config.task, setup.datasets.names
    cls = task.head.architecture.removeprefix("Bert").removeprefix("Model")
    longer = WINDOWS if task.has_windows else CUT
    limit = LENGTH.format(length=config.sequence_length, longer=longer)
    limits = [limit, *[PAIRS] * (task.has_pairs and not task.has_windows)]
    metrics = [
        f"| `{spec.replace('|', '&#124;')}` | {name} | {value:.4g} |"
        for spec, found in scores.items()
        for name, value in found.items()
    ]
    sections = [
        f"{METADATA}pipeline_tag: {task.pipeline}\n---",
        f"# BERT for {task.kind.replace('_', ' ')}",
        f"Fine-tuned with bert_jax on `{config.data.train}`: seed {best.seed}, step"
        f" {best.best_step:,}.",
        f"## Loading\n\n{LOADING.format(cls='AutoModel' + cls)}",
        "\n".join(["## Metrics\n\n| dev set | metric | |\n|---|---|---|", *metrics]),
        f"## Input\n\n{' '.join(limits)}",
        f"## Labels\n\n{', '.join(f'`{name}`' for name in names)}" if names else "",
        f"## Config\n\n```json\n{config.to_json()}\n```",
    ]
    text = "\n\n".join(filter(None, sections)) + "\n"
    storage.write(str(directory / "README.md"), text.encode())


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
        display_labels=[name.replace("$", r"\$") for name in names],  # no formula
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
