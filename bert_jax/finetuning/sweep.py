"""Runs a sweep, one fine-tuning run per learning rate and seed, and writes results.

The workdir of a sweep keeps its settings the same in every call, and has the best run's
model, predictions and metrics.
"""

import dataclasses
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import small_files
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.distributed import multihost, preemption
from bert_jax.errors import AllDivergedError, ConfigError
from bert_jax.finetuning import results as results_lib
from bert_jax.finetuning import run as tuning
from bert_jax.finetuning import setup as setup_lib
from bert_jax.finetuning import tuned_model
from bert_jax.finetuning.config import MAY_CHANGE, FinetuneConfig
from bert_jax.finetuning.data.datasets import Split
from bert_jax.finetuning.results import Result
from bert_jax.finetuning.setup import Setup, Start
from bert_jax.monitoring.progress import Progress
from bert_jax.monitoring.report import format_duration

SETTINGS_FILE = "finetune.json"
PREDICTIONS_DIRECTORY = "predictions"
SUMMARY_FILE = "results.json"


def sweep(
    config: FinetuneConfig,
    start: Start,
    workdir: str,
    learning_rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Result]:
    """Runs every learning rate and seed, and writes the best model.

    Completed runs of earlier calls are not repeated, and an interrupted one resumes.

    Args:
      config: the config of all runs; each has its own learning rate.
      workdir: the directory of the sweep, the same for all processes.
      learning_rates, seeds: each pair of them is a run.

    Returns:
      The results of all runs in the workdir, those of earlier calls included.

    Raises:
      ConfigError: if an input is invalid, or the workdir has other settings.
      AllDivergedError: if every run diverged before its first evaluation.
      Interrupted: when the run was interrupted and a checkpoint is saved.
    """
    began = time.monotonic()
    setup = setup_lib.open_inputs(config, start)
    multihost.make_shared("workdir", workdir)
    multihost.agree("workdir", lambda: lock_and_check(workdir, setup, start))
    print(setup_lib.describe(setup, start, workdir), flush=True)
    preemption.save_on_signals()
    for learning_rate in learning_rates:
        for seed in seeds:
            if len(learning_rates) * len(seeds) > 1:
                print(f"learning rate {learning_rate:g}, seed {seed}:", flush=True)
            directory = results_lib.directory_of(workdir, learning_rate, seed)
            if results_lib.read(directory):
                print("already complete", flush=True)
            result = tuning.tune(setup, learning_rate, seed, directory)
            if result.diverged:
                print(f"diverged: {result.diverged}", flush=True)
    preemption.restore_ctrl_c()
    results = results_lib.read_all(results_lib.runs_directory(workdir))
    write(setup, workdir, results, time.monotonic() - began)
    return results


def lock_and_check(workdir: str, setup: Setup, start: Start) -> str:
    """Locks the workdir and writes its settings; returns "", for `multihost.agree`."""
    workdir_lib.lock(workdir)
    for name in (tuned_model.DIRECTORY, PREDICTIONS_DIRECTORY):
        path = Path(workdir) / name
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise ConfigError(f"{path} is not a directory; remove it")
    settings: dict[str, Any] = {
        "config": json.loads(setup.config.to_json()),
        # Other paths are URLs, or names on the Hugging Face Hub.
        "model": os.path.abspath(start.model)
        if os.path.exists(start.model)
        else start.model,
        "is_from_scratch": start.is_from_scratch,
        "lowercase": setup.encoder.tokenizer.lowercase,
        "encoder_sha256": setup_lib.digest(setup.encoder),
        "data_sha256": setup.sha256,
    }
    path = Path(workdir) / SETTINGS_FILE
    if path.is_file():
        remedy = "restore it, or use another --workdir"
        _check_same(workdir, small_files.read_json(path, remedy), settings)
    elif (Path(workdir) / workdir_lib.CONFIG_FILE).is_file():
        raise ConfigError(
            f"--workdir={workdir} has a run of python -m bert_jax.train, or a model;"
            " use another --workdir"
        )
    small_files.write_json(path, settings)
    return ""


def _check_same(workdir: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ConfigError if a setting that may not change differs."""
    before, now = config_lib.flatten(before), config_lib.flatten(now)
    for key in sorted({*before, *now}):
        if key.startswith(MAY_CHANGE) or before.get(key) == now.get(key):
            continue
        if key in setup_lib.DIGESTED:
            raise ConfigError(
                f"{setup_lib.DIGESTED[key]} has changed since --workdir={workdir} was"
                " started; restore it, or use another --workdir"
            )
        raise ConfigError(
            f"{key}={now.get(key)!r}, but --workdir={workdir} was started with"
            f" {before.get(key)!r}; use that value, or another --workdir"
        )


def write(setup: Setup, workdir: str, results: list[Result], seconds: float) -> None:
    """Writes the best run's model, the predictions, the plots and results.json.

    Prints a table of all runs.

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
        tuned_model.write(setup, params, workdir, scores)
        results_lib.plot_curves(workdir, results, metric)
        dev = setup.datasets.dev[0].examples
        results_lib.plot_confusion(workdir, dev, predicted[0], setup.datasets.names)
        content = {
            "metric": metric,
            "best": {"learning_rate": best.learning_rate, "seed": best.seed},
            "dev": scores,
            "runs": [dataclasses.asdict(result) for result in results],
        }
        small_files.write_json(Path(workdir) / SUMMARY_FILE, content)
        results_lib.print_table(results, metric)
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
    model = shlex.quote(f"--model={workdir}/{tuned_model.DIRECTORY}")
    line = shlex.quote(setup.config.task.form.example)
    return (
        f"Best by {metric}: learning rate {best.learning_rate:g}, seed {best.seed},"
        f" step {best.best_step:,} ({format_duration(seconds)} in this call). {sets}."
        f"{_majority(setup.datasets.dev[0]) if metric == 'accuracy' else ''} The"
        f" model is in {workdir}/{tuned_model.DIRECTORY}, predictions in"
        f" {workdir}/{PREDICTIONS_DIRECTORY}, curves in"
        f" {workdir}/{results_lib.CURVES_FILE}. Next, predict the lines of a file or,"
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
    """Writes the predictions of each data set into a directory of its own.

    Returns:
      The metrics of the dev sets, keyed by their specs.
    """
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
