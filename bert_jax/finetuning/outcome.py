"""Writes the results of a sweep: the best run's model, predictions and metrics."""

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
_UNFINISHED = ".model.unfinished."  # hidden, so that it matches no user's directory


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
    summary = {
        "metric": metric,
        "best": {"learning_rate": best.learning_rate, "seed": best.seed},
        "dev": scores,
        "runs": [dataclasses.asdict(result) for result in results],
    }
    text = json.dumps(summary, indent=2) + "\n"
    storage.write(str(Path(workdir) / SUMMARY_FILE), text.encode())
