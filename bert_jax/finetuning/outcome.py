"""What a sweep leaves: the best run's model and predictions."""

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax import storage
from bert_jax.finetuning import task, thresholds, tuned_card
from bert_jax.finetuning.run import Result
from bert_jax.finetuning.sweep import Setup
from bert_jax.interop import files, huggingface_write

MODEL_DIRECTORY = "model"
PREDICTIONS_DIRECTORY = "predictions"
SUMMARY_FILE = "results.json"
_UNFINISHED = ".model.unfinished."  # no name that a person gives to a copy


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


def write_model(
    setup: Setup, params: Any, workdir: str, scores: dict[str, dict[str, float]]
) -> None:
    """Writes a tuned model for transformers and `predict`, in place of an older one.

    Args:
      setup: of the runs that the model is the best of.
      params: of the model.
      workdir: of the runs.
      scores: metrics of the dev sets, for the model's card.
    """
    target = Path(workdir) / MODEL_DIRECTORY
    for left in target.parent.glob(f"{_UNFINISHED}*"):  # by a call that was killed
        shutil.rmtree(left)
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
        tuned_card.write(tmp, setup, scores)  # without digest: people edit it
        tmp.chmod(0o755)  # mkdtemp keeps it to its owner
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
    """Writes results.json: the best run, its metrics on every dev set, all runs."""
    summary = {
        "metric": metric,
        "best": {"learning_rate": best.learning_rate, "seed": best.seed},
        "dev": scores,
        "runs": [dataclasses.asdict(result) for result in results],
    }
    text = json.dumps(summary, indent=2) + "\n"
    storage.write(str(Path(workdir) / SUMMARY_FILE), text.encode())
