"""Tunes a trained model on a labelled task.

    python -m bert_jax.finetune --config=configs/finetune/X.py --model=DIR
        [--workdir=DIR] [--seeds=0,1,2] [--sweep] [--from_scratch]
        [--lowercase=true|false] [--config.KEY=VALUE ...]

DIR is one of `export`, of any Hugging Face BERT, a TF1 checkpoint of Google's, or a
workdir of `train`. Each learning rate and seed is a run of its own below the workdir,
and continues by itself; what was best on the dev set is written to WORKDIR/model, which
transformers and `python -m bert_jax.predict` load.
"""

import dataclasses
import hashlib
import json
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from bert_jax import (
    command_line,
    devices,
    encoders,
    hosts,
    interruption,
    mesh_fit,
    runs,
    sharding,
    startup,
    storage,
    workdir_lock,
)
from bert_jax.config import ConfigError
from bert_jax.encoders import Encoder
from bert_jax.guard import DivergedError
from bert_jax.interop import huggingface, model_directory
from bert_jax.report import duration
from bert_jax.tasks import config as config_lib
from bert_jax.tasks import datasets as datasets_lib
from bert_jax.tasks import task, tuning, tuning_report
from bert_jax.tasks.config import FinetuneConfig
from bert_jax.tasks.datasets import Datasets
from bert_jax.tasks.tuning import Result, Setup

SETTINGS_FILE = "finetune.json"
SUMMARY_FILE = "results.json"
MODEL_DIRECTORY = "model"
PREDICTIONS_DIRECTORY = "predictions"
# What may change when a sweep goes on: where and how it runs, not what it computes.
MAY_CHANGE = (
    "config.mesh",
    "config.accumulation_steps",
    "config.remat",
    "config.log_every_steps",
    "config.compilation_cache_dir",
    "config.recipe.learning_rate",  # each has runs of its own
    "config.recipe.learning_rates",
    "model",  # it may have moved; its digest is compared
)


@dataclasses.dataclass(frozen=True)
class Start:
    """What tuning begins with.

    Attributes:
      model: where the encoder is.
      is_from_scratch: whether only its sizes and tokenizer are taken.
      lowercase: whether its text was lower-cased, where it does not say.
    """

    model: str
    is_from_scratch: bool
    lowercase: bool | None


def finetune(
    config: FinetuneConfig,
    start: Start,
    workdir: str,
    learning_rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Result]:
    """Makes a run for each learning rate and seed, and keeps the best one's model."""
    began = time.monotonic()
    setup = open_inputs(config, start)
    hosts.make_shared("workdir", workdir)
    hosts.agree("workdir", lambda: take_workdir(workdir, setup, start))
    print(describe(setup, start, workdir), flush=True)
    interruption.listen()
    results = []
    for learning_rate in learning_rates:
        for seed in seeds:
            if len(learning_rates) * len(seeds) > 1:
                print(f"learning rate {learning_rate:g}, seed {seed}:", flush=True)
            directory = run_directory(workdir, learning_rate, seed)
            result = tuning.tune(setup, learning_rate, seed, directory)
            if result.diverged:
                print(f"diverged: {result.diverged}", flush=True)
            results.append(result)
    interruption.ignore()
    finish(setup, start, workdir, results, time.monotonic() - began)
    return results


def run_directory(workdir: str, learning_rate: float, seed: int) -> str:
    return f"{workdir}/runs/lr{learning_rate:g}_seed{seed}"


def open_inputs(config: FinetuneConfig, start: Start) -> Setup:
    """Returns everything that is read, with the mesh set; nothing is written.

    Raises:
      ConfigError: for everything a person can get wrong.
    """
    devices.open_devices()
    startup.keep_compiled(config.compilation_cache_dir)
    mesh = sharding.make_mesh(config.mesh)
    jax.set_mesh(mesh)
    mesh_fit.check_batch(
        "config.recipe.global_batch_size",
        config.recipe.global_batch_size,
        config.accumulation_steps,
        mesh,
    )
    sharding.host_part(mesh, jax.process_index())
    encoder = encoders.read(start.model, start.lowercase)
    mesh_fit.check_model(encoder.config, config.mesh, mesh)
    most = encoder.config.max_position_embeddings
    if config.sequence_length > most:
        raise ConfigError(
            f"config.sequence_length={config.sequence_length}, but the model in"
            f" {start.model} has {most} positions; set it so, or lower"
        )
    datasets = datasets_lib.read(config, encoder.tokenizer)
    sha256 = datasets.sha256()
    hosts.check_same(
        "training data", sha256, f"config.data.train={config.data.train!r} differs"
    )
    return Setup(config, encoder, start.is_from_scratch, datasets, sha256, mesh)


def take_workdir(workdir: str, setup: Setup, start: Start) -> str:
    """Locks the workdir and writes its settings.

    Raises:
      ConfigError: when another process writes there, or it holds other runs.
    """
    workdir_lock.hold(workdir)
    settings: dict[str, Any] = {
        "config": json.loads(setup.config.to_json()),
        "model": str(Path(start.model).absolute()),
        "is_from_scratch": start.is_from_scratch,
        "encoder_sha256": _digest(setup.encoder),
    }
    path = Path(workdir) / SETTINGS_FILE
    if path.is_file():
        was = runs.flat(model_directory.read_json(path))
        now = runs.flat(settings)
        for key in sorted({*was, *now}):
            may_change = key.startswith(MAY_CHANGE)
            if not may_change and was.get(key) != now.get(key):
                raise ConfigError(
                    f"{key}={now.get(key)!r}, but --workdir={workdir} was begun with"
                    f" {was.get(key)!r}; give that, or another --workdir"
                )
    elif (Path(workdir) / runs.CONFIG_FILE).is_file():
        raise ConfigError(
            f"--workdir={workdir} holds a run of python -m bert_jax.train; give another"
        )
    storage.write(str(path), (json.dumps(settings, indent=2) + "\n").encode())
    return ""


def finish(
    setup: Setup, start: Start, workdir: str, results: list[Result], seconds: float
) -> None:
    """Keeps the best run's model, its predictions and pictures, and tells of it.

    Raises:
      DivergedError: when all runs did.
    """
    metric = setup.config.metric
    sound = [result for result in results if result.best_step]
    if not sound:
        raise DivergedError(
            0, f"no run got to its first look at the dev set: {results[0].diverged}"
        )
    best = max(sound, key=lambda result: result.metrics[metric])
    directory = run_directory(workdir, best.learning_rate, best.seed)
    params = tuning.best_params(setup, best, directory)
    predicted = [setup.predict(params, split) for split in setup.datasets.dev]
    tests = [setup.predict(params, split) for split in setup.datasets.test]
    # The first process has only its share of what is split over hosts.
    params = jax.tree.map(lambda x: jax.reshard(x, jax.P()), params)
    if not hosts.is_first():
        return
    scores = write_predictions(setup, workdir, predicted, tests)
    write_model(setup, params, Path(workdir) / MODEL_DIRECTORY)
    tuning_report.plot_curves(workdir, results, metric)
    dev = setup.datasets.dev[0].examples
    tuning_report.plot_confusion(workdir, dev, predicted[0], setup.datasets.names)
    summary = {
        "metric": metric,
        "best": {"learning_rate": best.learning_rate, "seed": best.seed},
        "dev": scores,
        "runs": [dataclasses.asdict(result) for result in results],
    }
    text = json.dumps(summary, indent=2) + "\n"
    storage.write(str(Path(workdir) / SUMMARY_FILE), text.encode())
    tuning_report.print_table(results, metric)
    print(closing_words(setup, start, workdir, best, scores, seconds))


def write_predictions(
    setup: Setup, workdir: str, dev: list[Any], test: list[Any]
) -> dict[str, dict[str, float]]:
    """Writes what was predicted, a directory a set; returns the dev sets' metrics."""
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
            of_glue = glue[i] if kind == "test" and glue else ""
            task.write_predictions(
                config.task, split.examples, predicted, names, directory, of_glue
            )
            if kind == "dev":
                scores[split.spec] = task.evaluate(
                    config.task, split.examples, predicted, names
                )
    return scores


def write_model(setup: Setup, params: Any, target: Path) -> None:
    """Writes a tuned model for transformers and `predict`, in place of an older one."""
    tmp = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
    try:
        tokenizer = setup.encoder.tokenizer
        huggingface.write_tuned(tmp, params, setup.model, setup.head, tokenizer)
        model_directory.write_digests(tmp)
        tmp.chmod(0o755)  # mkdtemp keeps it to its owner
        if target.exists():
            shutil.rmtree(target)
        os.replace(tmp, target)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise


def describe(setup: Setup, start: Start, workdir: str) -> str:
    """Returns a few lines on what is about to happen."""
    config, datasets = setup.config, setup.datasets
    model = setup.encoder.config
    begins = "its sizes and tokenizer alone" if start.is_from_scratch else "its weights"
    names = f", {len(datasets.names)} labels" if datasets.names else ""
    lines = [
        f"model:  {start.model}, {begins}; {model.num_hidden_layers} layers of"
        f" {model.hidden_size}",
        f"task:   {config.task.kind}{names}, best by {config.metric}",
        f"data:   {len(datasets.train.features):,} rows to train on, dev"
        f" {', '.join(f'{len(split.features):,}' for split in datasets.dev)}",
        *(f"        {note}" for note in (*setup.encoder.notes, *_losses(datasets))),
        f"device: {jax.device_count()} x {jax.devices()[0].device_kind}, workdir"
        f" {workdir}",
    ]
    return "\n".join(lines)


def closing_words(
    setup: Setup,
    start: Start,
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
    model = shlex.quote(f"--model={workdir}/{MODEL_DIRECTORY}")
    return (
        f"Best by {metric}: learning rate {best.learning_rate:g}, seed {best.seed},"
        f" step {best.best_step:,} ({duration(seconds)} in this call). {sets}. The"
        f" model is in {workdir}/{MODEL_DIRECTORY}, predictions in"
        f" {workdir}/{PREDICTIONS_DIRECTORY}, curves in"
        f" {workdir}/{tuning_report.CURVES_FILE}. Next: `python -m bert_jax.predict"
        f" {model} --input=FILE`."
    )


def _losses(datasets: Datasets) -> list[str]:
    """Returns a line for each set of which something was cut or left out."""
    found = []
    for split in (datasets.train, *datasets.dev, *datasets.test):
        parts = [
            f"{count:,} {words}"
            for holder, name, words in (
                (split.features, "num_truncated", "rows cut to the sequence length"),
                (split.features, "num_cut", "words beyond the sequence length"),
                (split.examples, "num_mended", "answers with a wrong offset, mended"),
                (split.examples, "num_lost", "answers that are not in their text"),
            )
            if (count := getattr(holder, name, 0))
        ]
        if parts:
            found.append(f"{split.spec}: {', '.join(parts)}")
    return found


def _digest(encoder: Encoder) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(encoder.arrays.items()):
        digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


def main() -> None:
    config = command_line.load_config(_CONFIG, config_lib.from_config_dict)
    if not _MODEL.value:
        raise ConfigError("--model is missing; see --help")
    name = command_line.config_name(_CONFIG)
    workdir = _WORKDIR.value or f"runs/finetune-{name}"
    command_line.local_directory("workdir", workdir)
    try:
        seeds = [int(seed) for seed in _SEEDS.value]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise ConfigError(f"--seeds={','.join(_SEEDS.value)} must be numbers, as 0,1,2")
    recipe = config.recipe
    learning_rates = recipe.learning_rates if _SWEEP.value else (recipe.learning_rate,)
    start = Start(_MODEL.value, _FROM_SCRATCH.value, _LOWERCASE.value)
    hosts.join()
    with hosts.together():
        finetune(config, start, workdir, learning_rates, seeds)


if __name__ == "__main__":
    _CONFIG = command_line.define_config()
    _MODEL = flags.DEFINE_string("model", None, "what to tune: a trained model")
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
    command_line.run(main, __doc__)
