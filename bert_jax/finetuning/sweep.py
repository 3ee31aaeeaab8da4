"""Runs a sweep, one fine-tuning run per learning rate and seed, and writes results.

The workdir of a sweep keeps its settings the same in every call, and has the best run's
model, predictions and metrics.
"""

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
from bert_jax.finetuning.setup import Datasets, Setup, Start

SETTINGS_FILE = "finetune.json"
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
LISTED_CLASSES = 20  # of more classes, the smallest and the largest are reported


def sweep(
    config: FinetuneConfig,
    start: Start,
    workdir: str,
    learning_rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Result]:
    """Runs every learning rate with every seed, and writes the best model.

    Completed runs of earlier calls are not repeated, and an interrupted one resumes.
    Returns the results of all runs in the workdir, which all processes share.

    Raises:
      AllDivergedError: if every run diverged before its first evaluation.
      Interrupted: when the run was interrupted and a checkpoint is saved.
    """
    began = time.monotonic()
    setup = setup_lib.open_inputs(config, start)
    multihost.make_shared(workdir)
    multihost.agree("workdir", lambda: lock_and_check(workdir, setup, start))
    print(describe(setup, start, workdir), flush=True)
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
    results = results_lib.read_all(workdir)
    write(setup, workdir, results, time.monotonic() - began)
    return results


def write(setup: Setup, workdir: str, results: list[Result], seconds: float) -> None:
    """Writes the best run's model, predictions and metrics, and prints all results."""
    best = results_lib.best_run(results, setup.config.metric)
    directory = results_lib.directory_of(workdir, best.learning_rate, best.seed)
    params = tuning.best_params(setup, best, directory)
    results_lib.write_best(setup, workdir, results, best, params, seconds)


def lock_and_check(workdir: str, setup: Setup, start: Start) -> str:
    """Locks the workdir and writes its settings; returns "", for `multihost.agree`."""
    workdir_lib.lock(workdir)
    for name in (results_lib.MODEL_DIRECTORY, results_lib.PREDICTIONS_DIRECTORY):
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


def describe(setup: Setup, start: Start, workdir: str) -> str:
    """Returns the first lines of a sweep: its model, task, data and devices."""
    config, datasets = setup.config, setup.datasets
    part = "sizes and tokenizer only" if start.is_from_scratch else "its weights"
    names = f", {len(datasets.names)} labels" if datasets.names else ""
    notes = [*setup.encoder.notes, *class_counts(datasets), *losses(datasets)]
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
        f" {config.sequence_length} tokens, best by {config.metric}",
        f"data:   {sizes[0]} to train on, dev {', '.join(sizes[1:])}",
        *(f"        {note}" for note in notes),
        f"device: {jax.device_count()} x {jax.devices()[0].device_kind}, workdir"
        f" {workdir}",
    ]
    return "\n".join(lines)


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
