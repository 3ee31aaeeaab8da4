"""Predictions in files that leaderboards and people's tools take."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.tasks.answers import Answers
from bert_jax.tasks.conll import Sentences

# What gluebenchmark.com calls the file of a task.
GLUE_FILES = {
    "cola": "CoLA.tsv",
    "sst2": "SST-2.tsv",
    "mrpc": "MRPC.tsv",
    "stsb": "STS-B.tsv",
    "qqp": "QQP.tsv",
    "mnli_matched": "MNLI-m.tsv",
    "mnli_mismatched": "MNLI-mm.tsv",
    "qnli": "QNLI.tsv",
    "rte": "RTE.tsv",
    "wnli": "WNLI.tsv",
    "ax": "AX.tsv",
}
SCORE_RANGE = (0.0, 5.0)  # of STS-B, the one regression


def write_glue(
    directory: Path, task: str, predicted: np.ndarray, names: Sequence[str]
) -> Path:
    """Writes index and prediction of a test set, and returns the file's path.

    Args:
      directory: that exists.
      task: one of GLUE_FILES.
      predicted: int[N] classes, or float[N] scores.
      names: of the classes as GLUE writes them: "0" and "1", or "entailment" and so on.
    """
    path = directory / GLUE_FILES[task]
    if np.issubdtype(predicted.dtype, np.floating):
        values = [f"{score:.3f}" for score in np.clip(predicted, *SCORE_RANGE)]
    else:
        values = [names[number] for number in predicted]
    rows = (f"{i}\t{value}\n" for i, value in enumerate(values))
    _write(path, ("index\tprediction\n", *rows))
    return path


def write_squad(directory: Path, answers: Answers) -> None:
    """Writes predictions.json, nbest_predictions.json and null_odds.json."""
    for name, values in (
        ("predictions.json", answers.texts),
        ("nbest_predictions.json", answers.best),
        ("null_odds.json", answers.null_odds),
    ):
        _write(directory / name, [json.dumps(values, indent=2) + "\n"])


def write_conll(
    path: Path, sentences: Sentences, predicted: Sequence[Sequence[str]]
) -> None:
    """Writes word, right tag if any, and predicted tag, as conlleval reads them."""
    lines = []
    for i, words in enumerate(sentences.words):
        columns = [words, predicted[i]]
        if sentences.tags is not None:
            columns.insert(1, sentences.tags[i])
        lines += [" ".join(row) + "\n" for row in zip(*columns, strict=True)]
        lines.append("\n")
    _write(path, lines)


def write_json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes an object a line."""
    _write(path, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _write(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
