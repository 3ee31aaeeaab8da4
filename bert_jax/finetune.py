"""Tunes a trained model on a labelled task.

    python -m bert_jax.finetune --config=configs/finetune/X.py --model=DIR
        [--workdir=DIR] [--seeds=0,1,2] [--sweep] [--from_scratch]
        [--lowercase=true|false] [--config.KEY=VALUE ...]

DIR is one of `export`, of any Hugging Face BERT, a TF1 checkpoint of Google's, or a
workdir of `train`. Each learning rate and seed is a run of its own below the workdir,
and continues by itself; what was best on the dev set is written to WORKDIR/model, which
transformers and `python -m bert_jax.predict` load.
"""

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from bert_jax import cli, storage
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.config import ModelConfig
from bert_jax.distributed import multihost, preemption
from bert_jax.errors import EXIT_DIVERGED, ConfigError
from bert_jax.finetuning import config as config_lib
from bert_jax.finetuning import inputs, outcome, report
from bert_jax.finetuning import run as tuning
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.data.datasets import Datasets, Split
from bert_jax.finetuning.data.squad import Questions
from bert_jax.finetuning.inputs import Start
from bert_jax.finetuning.run import Result
from bert_jax.finetuning.sweep import Setup
from bert_jax.monitoring.progress import Progress
from bert_jax.monitoring.report import format_duration

SETTINGS_FILE = "finetune.json"
# What may change when a sweep goes on: where and how it runs, not what it computes.
MAY_CHANGE = (
    "config.mesh",
    "config.accumulation_steps",
    "config.remat",
    "config.log_every_steps",
    "config.compilation_cache_dir",
    "config.data.test",  # what is said of it is written anew in every call
    "config.task.glue",
    "config.task.index",
    "config.recipe.learning_rate",  # each has runs of its own
    "config.recipe.learning_rates",
    "model",  # these may have moved; their digests are compared
    "config.distill.teacher",
)


class AllDivergedError(ConfigError):
    """No run came to a look at its dev set."""

    exit_code = EXIT_DIVERGED


def finetune(
    config: FinetuneConfig,
    start: Start,
    workdir: str,
    learning_rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Result]:
    """Makes a run for each learning rate and seed, and keeps the best one's model."""
    began = time.monotonic()
    setup = inputs.open_inputs(config, start)
    multihost.make_shared("workdir", workdir)
    multihost.agree("workdir", lambda: take_workdir(workdir, setup, start))
    print(describe(setup, start, workdir), flush=True)
    preemption.save_on_signals()
    for learning_rate in learning_rates:
        for seed in seeds:
            if len(learning_rates) * len(seeds) > 1:
                print(f"learning rate {learning_rate:g}, seed {seed}:", flush=True)
            directory = run_directory(workdir, learning_rate, seed)
            if tuning.read_result(directory):
                print("done before", flush=True)
            result = tuning.tune(setup, learning_rate, seed, directory)
            if result.diverged:
                print(f"diverged: {result.diverged}", flush=True)
    preemption.restore_ctrl_c()
    # With those of earlier calls: WORKDIR/model is the best of all.
    results = tuning.results_in(runs_directory(workdir))
    finish(setup, workdir, results, time.monotonic() - began)
    return results


def run_directory(workdir: str, learning_rate: float, seed: int) -> str:
    return f"{runs_directory(workdir)}/lr{learning_rate:g}_seed{seed}"


def runs_directory(workdir: str) -> str:
    return f"{workdir}/runs"


def take_workdir(workdir: str, setup: Setup, start: Start) -> str:
    """Locks the workdir and writes its settings.

    Raises:
      ConfigError: when another process writes there, or it holds other runs.
    """
    workdir_lib.lock(workdir)
    settings: dict[str, Any] = {
        "config": json.loads(setup.config.to_json()),
        "model": str(Path(start.model).absolute()),
        "is_from_scratch": start.is_from_scratch,
        "lowercase": setup.encoder.tokenizer.lowercase,
        "encoder_sha256": inputs.digest(setup.encoder),
        "data_sha256": setup.sha256,
    }
    path = Path(workdir) / SETTINGS_FILE
    if path.is_file():
        remedy = "restore it, or give another --workdir"
        was = workdir_lib.flatten(storage.read_json(path, remedy))
        now = workdir_lib.flatten(settings)
        for key in sorted({*was, *now}):
            may_change = key.startswith(MAY_CHANGE)
            if not may_change and was.get(key) != now.get(key):
                if key in inputs.DIGESTED:
                    raise ConfigError(
                        f"{inputs.DIGESTED[key]} is no longer what --workdir={workdir}"
                        " was begun with; bring that back, or give another --workdir"
                    )
                raise ConfigError(
                    f"{key}={now.get(key)!r}, but --workdir={workdir} was begun with"
                    f" {was.get(key)!r}; give that, or another --workdir"
                )
    elif (Path(workdir) / workdir_lib.CONFIG_FILE).is_file():
        raise ConfigError(
            f"--workdir={workdir} holds a run of train, or a model; give another"
        )
    storage.write(str(path), (json.dumps(settings, indent=2) + "\n").encode())
    return ""


def finish(setup: Setup, workdir: str, results: list[Result], seconds: float) -> None:
    """Keeps the best run's model, its predictions and pictures, and tells of it.

    Raises:
      AllDivergedError: when all runs did.
    """
    metric = setup.config.metric
    sound = [result for result in results if result.best_step]
    if not sound:
        raise AllDivergedError(
            f"no run came to its first look at the dev set: {results[0].diverged}"
        )
    best = max(sound, key=lambda result: tuning.worth(result.metrics, metric))
    directory = run_directory(workdir, best.learning_rate, best.seed)
    params = tuning.best_params(setup, best, directory)
    predicted = [predict(setup, params, split) for split in setup.datasets.dev]
    tests = [predict(setup, params, split) for split in setup.datasets.test]
    # The first process has only its share of what is split over hosts.
    params = jax.tree.map(lambda x: jax.reshard(x, jax.P()), params)

    def write() -> str:
        scores = outcome.write_predictions(setup, workdir, predicted, tests)
        outcome.write_model(setup, params, workdir, scores)
        report.plot_curves(workdir, results, metric)
        dev = setup.datasets.dev[0].examples
        report.plot_confusion(workdir, dev, predicted[0], setup.datasets.names)
        outcome.write_summary(workdir, metric, best, scores, results)
        report.print_table(results, metric)
        print(closing_words(setup, workdir, best, scores, seconds))
        return ""

    multihost.agree("end", write)  # nobody is done before all is written


def predict(setup: Setup, params: Any, split: Split) -> Any:
    """Returns the predictions for a set, and shows progress."""
    doing = f"predicting {split.spec}"
    with Progress(doing, len(split.features), "rows") as progress:
        return setup.predict(params, split, progress.add)


def describe(setup: Setup, start: Start, workdir: str) -> str:
    """Returns a few lines on what is about to happen."""
    config, datasets = setup.config, setup.datasets
    model = setup.encoder.config
    begins = "its sizes and tokenizer alone" if start.is_from_scratch else "its weights"
    names = f", {len(datasets.names)} labels" if datasets.names else ""
    taught = []
    if setup.teacher:
        layers = _layers(setup.teacher.config)
        taught = [f"teacher: {config.distill.teacher}, {layers}"]
    lines = [
        f"model:  {start.model}, {begins}; {_layers(model)} of {model.hidden_size}",
        *taught,
        f"task:   {config.task.kind}{names}, best by {config.metric}",
        f"data:   {_size(datasets.train)} to train on, dev"
        f" {', '.join(map(_size, datasets.dev))}",
        *(f"        {note}" for note in (*setup.encoder.notes, *left_out(datasets))),
        f"device: {jax.device_count()} x {jax.devices()[0].device_kind}, workdir"
        f" {workdir}",
    ]
    return "\n".join(lines)


def _layers(model: ModelConfig) -> str:
    number = model.num_hidden_layers
    return f"{number} layer{'s' if number > 1 else ''}"


def _size(split: Split) -> str:
    rows = f"{len(split.features):,} rows"
    if isinstance(split.examples, Questions):
        return f"{len(split.examples.questions):,} questions in {rows}"
    return rows


def closing_words(
    setup: Setup,
    workdir: str,
    best: Result,
    scores: dict[str, dict[str, float]],
    seconds: float,
) -> str:
    """Returns one paragraph: what happened, and what to do next."""
    metric = setup.config.metric
    sets = "; ".join(
        f"{spec}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        for spec, found in scores.items()
    )
    model = shlex.quote(f"--model={workdir}/{outcome.MODEL_DIRECTORY}")
    return (
        f"Best by {metric}: learning rate {best.learning_rate:g}, seed {best.seed},"
        f" step {best.best_step:,} ({format_duration(seconds)} in this call). {sets}."
        f"{_without_model(setup.datasets.dev[0]) if metric == 'accuracy' else ''} The"
        f" model is in {workdir}/{outcome.MODEL_DIRECTORY}, predictions in"
        f" {workdir}/{outcome.PREDICTIONS_DIRECTORY}, curves in"
        f" {workdir}/{report.CURVES_FILE}. Next: `python -m bert_jax.predict"
        f" {model} --input=FILE`."
    )


def _without_model(dev: Split) -> str:
    """Returns the accuracy of the commonest label, "" where there are no classes."""
    labels = getattr(dev.examples, "labels", None)
    if labels is None or labels.dtype != np.int32:
        return ""
    share = np.bincount(labels).max() / len(labels)
    return f" Always the commonest label of {dev.spec} has accuracy {share:.4g}."


def left_out(datasets: Datasets) -> list[str]:
    """Returns a line for each set of which something was cut or left out."""
    found = []
    for split in (datasets.train, *datasets.dev, *datasets.test):
        parts = [
            f"{count:,} {words}"
            for holder, name, words in (
                (split.features, "num_truncated", "rows cut to the sequence length"),
                (split.features, "num_cut", "words beyond the sequence length"),
                (split.features, "num_dropped", "questions without their answer"),
                (
                    split.examples,
                    "num_lost_lines",
                    "lines with more or fewer columns, left out",
                ),
                (split.examples, "num_empty", "sentences without a word, left out"),
                (split.examples, "num_mended", "answers with a wrong offset, mended"),
                (split.examples, "num_lost", "answers that are not in their text"),
            )
            if (count := getattr(holder, name, 0))
        ]
        if parts:
            found.append(f"{split.spec}: {', '.join(parts)}")
    return found


def main() -> None:
    config = cli.load_config(_CONFIG, config_lib.from_config_dict)
    (model,) = cli.require("model")
    name = cli.config_name(_CONFIG)
    workdir = f"runs/finetune-{name}" if _WORKDIR.value is None else _WORKDIR.value
    cli.local_directory("workdir", workdir)
    try:
        seeds = [int(seed) for seed in _SEEDS.value]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or max(seeds) >= 2**32:
        raise ConfigError(f"--seeds={','.join(_SEEDS.value)} must be numbers, as 0,1,2")
    recipe = config.recipe
    learning_rates = recipe.learning_rates if _SWEEP.value else (recipe.learning_rate,)
    if not learning_rates:
        raise ConfigError("config.recipe.learning_rates is empty; --sweep needs some")
    asked = [run_directory("", rate, seed) for rate in learning_rates for seed in seeds]
    if len(set(asked)) < len(asked):
        raise ConfigError(
            "--seeds and config.recipe.learning_rates name a run twice"
            f" ({max(asked, key=asked.count).rpartition('/')[2]}); name each once"
        )
    start = Start(model, _FROM_SCRATCH.value, _LOWERCASE.value)
    multihost.join()
    preemption.exit_on_signals()
    with multihost.exit_on_error():
        finetune(config, start, workdir, learning_rates, seeds)


if __name__ == "__main__":
    _CONFIG = cli.define_config("configs/finetune")
    flags.DEFINE_string("model", None, "what to tune: a trained model")
    _WORKDIR = flags.DEFINE_string(
        "workdir", None, "where runs are kept; runs/finetune-NAME-OF-CONFIG if absent"
    )
    _SEEDS = flags.DEFINE_list("seeds", ["0"], "a run for each, as 0,1,2")
    _SWEEP = flags.DEFINE_bool(
        "sweep", False, "a run for each of config.recipe.learning_rates"
    )
    _FROM_SCRATCH = flags.DEFINE_bool(
        "from_scratch",
        False,
        "take the model's sizes and tokenizer alone: what pretraining is worth",
    )
    _LOWERCASE = flags.DEFINE_bool(
        "lowercase", None, "whether the model's text was, where it does not say"
    )
    cli.run(main, __doc__)
