"""Runs a sweep, one fine-tuning run per learning rate and seed, and writes results.

The workdir of a sweep keeps its settings the same in every call, and has the best run's
model, predictions and metrics.
"""

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax import small_files
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.config import ModelConfig
from bert_jax.distributed import multihost, preemption
from bert_jax.errors import ConfigError
from bert_jax.finetuning import results as results_lib
from bert_jax.finetuning import run as tuning
from bert_jax.finetuning import setup as setup_lib
from bert_jax.finetuning.config import MAY_CHANGE, FinetuneConfig
from bert_jax.finetuning.results import Result
from bert_jax.finetuning.setup import DIGESTED, Datasets, Setup, Split, Start
from bert_jax.monitoring.progress import Progress

SETTINGS_FILE = workdir_lib.FINETUNING_FILE
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
# Two layers of 128 or 256 learnt most at this rate on most tasks of docs/evidence.md.
SMALL_MODEL, RATE_OF_SMALL = 256, 3e-4
LISTED_CLASSES = 20  # of more classes, the smallest and the largest are reported


def sweep(
    config: FinetuneConfig,
    start: Start,
    workdir: str,
    learning_rates: Sequence[float],
    seeds: Sequence[int],
) -> None:
    """Runs every learning rate with every seed, and writes the best model.

    Completed runs of earlier calls are not repeated, and an interrupted one resumes.
    All processes share the workdir.

    Raises:
      AllDivergedError: if every run diverged before its first evaluation.
      Interrupted: when the run was interrupted and a checkpoint is saved.
    """
    began = time.monotonic()
    setup = setup_lib.open_inputs(config, start)
    multihost.make_shared(workdir)
    multihost.agree("workdir", lambda: lock_and_check(workdir, setup))
    print(describe(setup, workdir, learning_rates), flush=True)
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
    seconds = time.monotonic() - began
    write(setup, workdir, results_lib.read_all(workdir), seconds)


def write(setup: Setup, workdir: str, results: list[Result], seconds: float) -> None:
    """Writes the best run's model, predictions and metrics, and prints all results."""
    metric = setup.config.metric
    best = results_lib.best_run(results, metric)
    directory = results_lib.directory_of(workdir, best.learning_rate, best.seed)
    params = tuning.best_params(setup, best, directory)

    def predict(split: Split) -> Any:
        doing = f"predicting {split.spec}"
        with Progress(doing, len(split.features), "rows") as progress:
            return setup.predict(params, split, progress.add)

    predicted = [predict(split) for split in setup.datasets.dev]
    tests = [predict(split) for split in setup.datasets.test]
    # Process 0 writes the model, and holds only its shards of split parameters.
    whole = jax.tree.map(lambda x: jax.reshard(x, jax.P()), params)

    def write_all() -> None:
        scores = results_lib.write_predictions(setup, workdir, predicted, tests)
        results_lib.write_model(setup, whole, workdir, best, scores)
        results_lib.plot_curves(workdir, results, metric)
        dev, names = setup.datasets.dev[0].examples, setup.datasets.names
        results_lib.plot_confusion(workdir, dev, predicted[0], names)
        content = {
            "metric": metric,
            "best": {"learning_rate": best.learning_rate, "seed": best.seed},
            "dev": scores,
            "runs": [dataclasses.asdict(result) for result in results],
        }
        path = Path(workdir) / results_lib.SUMMARY_FILE
        small_files.write_json(path, content)
        results_lib.print_table(results, metric)
        print(results_lib.summary(setup, workdir, best, scores, seconds))

    multihost.agree("end", write_all)  # all processes wait for process 0


def lock_and_check(workdir: str, setup: Setup) -> None:
    """Locks the workdir and writes its settings, which may not have changed."""
    path = Path(workdir) / SETTINGS_FILE
    if not path.is_file():
        workdir_lib.check_not_other(workdir, f"--workdir={workdir}")
    workdir_lib.lock(workdir)
    for name in (results_lib.MODEL_DIRECTORY, results_lib.PREDICTIONS_DIRECTORY):
        output = Path(workdir) / name
        if output.is_symlink() or (output.exists() and not output.is_dir()):
            raise ConfigError(f"{output} is not a directory; remove it")
    model = setup.start.model
    settings: dict[str, Any] = {
        "config": json.loads(setup.config.to_json()),
        # Other paths are URLs, or names on the Hugging Face Hub.
        "model": os.path.abspath(model) if os.path.exists(model) else model,
        "is_from_scratch": setup.start.is_from_scratch,
        "lowercase": setup.encoder.tokenizer.lowercase,
        "encoder_sha256": setup_lib.digest(setup.encoder),
        "data_sha256": setup.sha256,
    }
    if path.is_file():
        remedy = "restore it, or use another --workdir"
        _check_same(workdir, small_files.read_json(path, remedy), settings)
    small_files.write_json(path, settings)


def _check_same(workdir: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ConfigError if a setting that may not change differs."""
    before, now = config_lib.flatten(before), config_lib.flatten(now)
    keys = [
        key
        for key in sorted({*before, *now}, key=lambda key: (key in DIGESTED, key))
        if not key.startswith(MAY_CHANGE) and before.get(key) != now.get(key)
    ]
    if not keys:
        return
    if (key := keys[0]) in DIGESTED:
        was = f" ({before['model']})" if key == "encoder_sha256" else ""
        raise ConfigError(
            f"{DIGESTED[key]} has changed since --workdir={workdir} was started;"
            f" restore it{was}, or use another --workdir"
        )
    old = {key: before.get(key) for key in keys if key.startswith("config.")}
    flags = workdir_lib.as_flags(old, SETTINGS_FILE) if old else "that value"
    raise ConfigError(
        f"{key}={now.get(key)!r}, but --workdir={workdir} was started with"
        f" {before.get(key)!r}; continue it with {flags}, or use another --workdir"
    )


def describe(setup: Setup, workdir: str, learning_rates: Sequence[float]) -> str:
    """Returns the first lines of a sweep: its model, task, data and devices."""
    config, datasets, start = setup.config, setup.datasets, setup.start
    part = "sizes and tokenizer only" if start.is_from_scratch else "its weights"
    names = f", {len(datasets.names)} labels" if datasets.names else ""
    notes = [*setup.encoder.notes, *class_counts(datasets), *losses(datasets)]
    train = _place(datasets.train)
    notes += [
        f"WARNING: config.data.dev has {split.spec}, the training set: scores on it are"
        " those of the training set"
        for split in datasets.dev
        if _place(split) == train
    ]
    width = setup.encoder.config.hidden_size
    if width <= SMALL_MODEL and max(learning_rates) < RATE_OF_SMALL / 2:
        notes.append(
            f"a learning rate of {max(learning_rates):g} is low for a hidden size of"
            f" {width}; try --config.recipe.learning_rate={RATE_OF_SMALL:g}"
        )
    sizes = [
        split.examples.size(len(split.features))
        for split in (datasets.train, *datasets.dev)
    ]
    models = [f"model:  {start.model}, {part}; {_size(setup.encoder.config)}"]
    if setup.teacher:
        size = _size(setup.teacher.config)
        models.append(f"teacher: {config.distill.teacher}, {size}")
    lines = [
        *models,
        f"task:   {config.task.kind}{names}, rows of at most"
        f" {config.sequence_length} tokens, dropout {config.dropout.hidden_prob:g},"
        f" best by {config.metric}",
        f"data:   {sizes[0]} to train on, dev {', '.join(sizes[1:])}",
        *(f"        {note}" for note in notes),
        f"device: {jax.device_count()} x {jax.devices()[0].device_kind}, workdir"
        f" {workdir}",
    ]
    return "\n".join(lines)


def _place(split: Split) -> tuple[str, str]:
    """Returns the kind of a data set, and its path without links."""
    kind, _, path = split.spec.partition(":")
    return kind, os.path.realpath(path)


def _size(model: ModelConfig) -> str:
    number = model.num_hidden_layers
    return f"{number} layer{'s' if number > 1 else ''} of {model.hidden_size}"


def class_counts(datasets: Datasets) -> list[str]:
    """Returns a line for each labelled set with the number of examples per class."""
    notes = []
    for split in (datasets.train, *datasets.dev):
        counts = split.examples.class_counts(datasets.names)
        shown = [f"{name} {count:,}" for name, count in counts]
        if len(shown) > LISTED_CLASSES:
            counts.sort(key=lambda item: -item[1])
            (most, highest), (least, lowest) = counts[0], counts[-1]
            shown = [f"from {least} {lowest:,} to {most} {highest:,}"]
        if shown:
            notes.append(f"{split.spec}: {', '.join(shown)}")
    return notes


def losses(datasets: Datasets) -> list[str]:
    """Returns a line for each data set that was truncated or is incomplete."""
    notes = []
    for split in (datasets.train, *datasets.dev, *datasets.test):
        parts = [
            f"{count:,} {words}"
            for name, words in LOSSES.items()
            for holder in (split.features, split.examples)
            if (count := getattr(holder, name, 0))
        ]
        if parts:
            notes.append(f"{split.spec}: {', '.join(parts)}")
    return notes
