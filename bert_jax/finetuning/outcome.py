"""Writes the results of a sweep: the best run's model, predictions and metrics."""

import dataclasses
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax import storage
from bert_jax.distributed import multihost
from bert_jax.errors import AllDivergedError
from bert_jax.finetuning import report, task, thresholds, tuned_card
from bert_jax.finetuning import results as results_lib
from bert_jax.finetuning import run as tuning
from bert_jax.finetuning.config import ChoiceTask, QuestionTask, TaggingTask, Task
from bert_jax.finetuning.data.datasets import Split
from bert_jax.finetuning.results import Result
from bert_jax.finetuning.setup import Setup
from bert_jax.interop import files, huggingface_write
from bert_jax.monitoring.progress import Progress
from bert_jax.monitoring.report import format_duration

MODEL_DIRECTORY = "model"
PREDICTIONS_DIRECTORY = "predictions"
SUMMARY_FILE = "results.json"
_UNFINISHED = ".model.unfinished."  # hidden, so that it matches no user's directory


def write(setup: Setup, workdir: str, results: list[Result], seconds: float) -> None:
    """Writes the best run's model, the predictions, the plots and results.json.

    Prints a table of all runs.

    Args:
      setup: the setup of the sweep.
      workdir: the workdir of the sweep.
      results: the results of all its runs.
      seconds: duration of this call, to print.

    Raises:
      AllDivergedError: if every run diverged before its first evaluation.
    """
    metric = setup.config.metric
    evaluated = [result for result in results if result.best_step]
    if not evaluated:
        raise AllDivergedError(
            f"every run diverged before its first evaluation: {results[0].diverged}"
        )
    best = max(evaluated, key=lambda result: results_lib.worth(result.metrics, metric))
    directory = results_lib.directory_of(workdir, best.learning_rate, best.seed)
    params = tuning.best_params(setup, best, directory)
    predicted = [_predict(setup, params, split) for split in setup.datasets.dev]
    tests = [_predict(setup, params, split) for split in setup.datasets.test]
    # Process 0 writes the model, and holds only its shards of split parameters.
    params = jax.tree.map(lambda x: jax.reshard(x, jax.P()), params)

    def write_all() -> str:
        scores = write_predictions(setup, workdir, predicted, tests)
        write_model(setup, params, workdir, scores)
        report.plot_curves(workdir, results, metric)
        dev = setup.datasets.dev[0].examples
        report.plot_confusion(workdir, dev, predicted[0], setup.datasets.names)
        write_summary(workdir, metric, best, scores, results)
        report.print_table(results, metric)
        print(summary(setup, workdir, best, scores, seconds))
        return ""

    multihost.agree("end", write_all)  # all processes wait for process 0


def _predict(setup: Setup, params: Any, split: Split) -> Any:
    """Returns the predictions for a data set, and shows progress."""
    doing = f"predicting {split.spec}"
    with Progress(doing, len(split.features), "rows") as progress:
        return setup.predict(params, split, progress.add)


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
    model = shlex.quote(f"--model={workdir}/{MODEL_DIRECTORY}")
    line = shlex.quote(example(setup.config.task))
    return (
        f"Best by {metric}: learning rate {best.learning_rate:g}, seed {best.seed},"
        f" step {best.best_step:,} ({format_duration(seconds)} in this call). {sets}."
        f"{_majority(setup.datasets.dev[0]) if metric == 'accuracy' else ''} The"
        f" model is in {workdir}/{MODEL_DIRECTORY}, predictions in"
        f" {workdir}/{PREDICTIONS_DIRECTORY}, curves in"
        f" {workdir}/{report.CURVES_FILE}. Next, predict the lines of a file or, with"
        f" --input=-, of standard input:\n  echo {line} | python -m bert_jax.predict"
        f" {model} --input=-"
    )


def example(task: Task) -> str:
    """Returns a line of input for `predict` with a model that is tuned on the task."""
    if isinstance(task, QuestionTask):
        parts = ("Who wrote it?", "Ann wrote it in May.")
    elif isinstance(task, ChoiceTask):
        parts = ("She opened the door.", "She went in.", "It was red.")
    elif isinstance(task, TaggingTask):
        parts = ("Ann lives in Paris .",)
    else:
        parts = ("A fine text.", "Another one.")[: len(task.text)]
    return " ||| ".join(parts)


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
    """Writes the predictions of each data set into a directory of its own.

    Returns:
      The metrics of the dev sets, keyed by their specs.
    """
    config, names = setup.config, setup.datasets.names
    glue = getattr(config.task, "glue", ())
    scores = {}
    for kind, splits, all_predicted in (
        ("dev", setup.datasets.dev, dev),
        ("test", setup.datasets.test, test),
    ):
        for i, (split, predicted) in enumerate(zip(splits, all_predicted, strict=True)):
            name = kind if len(splits) == 1 else f"{kind}{i + 1}"
            directory = Path(workdir) / PREDICTIONS_DIRECTORY / name
            directory.mkdir(parents=True, exist_ok=True)
            glue_name = glue[i] if kind == "test" and glue else ""
            task.write_predictions(
                config.task, split.examples, predicted, names, directory, glue_name
            )
            if kind == "dev":
                scores[split.spec] = task.evaluate(
                    config.task, split.examples, predicted, names
                )
    return scores


def write_model(
    setup: Setup, params: Any, workdir: str, scores: dict[str, dict[str, float]]
) -> None:
    """Writes a fine-tuned model for transformers and `predict`.

    Replaces the model of an earlier call.

    Args:
      setup: the setup of the sweep.
      params: the model's parameters, complete in this process.
      workdir: the workdir of the sweep.
      scores: metrics of the dev sets, for the model card.
    """
    target = Path(workdir) / MODEL_DIRECTORY
    # A killed process leaves its unfinished directory.
    for unfinished in target.parent.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(unfinished)
    tmp = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=target.parent))
    try:
        tokenizer = setup.encoder.tokenizer
        huggingface_write.write_tuned(
            tmp,
            params,
            setup.model,
            setup.head,
            tokenizer,
            setup.config.sequence_length,
        )
        has_impossible = getattr(setup.datasets.train.examples, "has_impossible", False)
        thresholds.write(tmp, setup.config.task, has_impossible)
        files.write_digests(tmp)
        tuned_card.write(tmp, setup, scores)  # has no digest, because users edit it
        tmp.chmod(0o755)  # mkdtemp makes it accessible to its owner only
        old = target.with_name(f"{_UNFINISHED}old")
        if target.exists():
            os.replace(target, old)
        os.replace(tmp, target)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise


def write_summary(
    workdir: str,
    metric: str,
    best: Result,
    scores: dict[str, dict[str, float]],
    results: Sequence[Result],
) -> None:
    """Writes results.json: the best run, its dev metrics, and the results of all."""
    content = {
        "metric": metric,
        "best": {"learning_rate": best.learning_rate, "seed": best.seed},
        "dev": scores,
        "runs": [dataclasses.asdict(result) for result in results],
    }
    text = json.dumps(content, indent=2) + "\n"
    storage.write(str(Path(workdir) / SUMMARY_FILE), text.encode())
