"""Writes predictions in the file formats of leaderboards and evaluation scripts."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax import storage
from bert_jax.finetuning.answers import Answers
from bert_jax.finetuning.data.conll import Sentences

# Task -> the file name that gluebenchmark.com requires, and whether its predictions are
# class numbers rather than names.
GLUE_FILES = {
    "cola": ("CoLA.tsv", True),
    "sst2": ("SST-2.tsv", True),
    "mrpc": ("MRPC.tsv", True),
    "stsb": ("STS-B.tsv", False),
    "qqp": ("QQP.tsv", True),
    "mnli_matched": ("MNLI-m.tsv", False),
    "mnli_mismatched": ("MNLI-mm.tsv", False),
    "qnli": ("QNLI.tsv", False),
    "rte": ("RTE.tsv", False),
    "wnli": ("WNLI.tsv", True),
    "ax": ("AX.tsv", False),
}
SCORE_RANGE = (0.0, 5.0)  # of STS-B, the only regression task


def write_glue(
    directory: Path,
    task: str,
    predicted_N: np.ndarray,
    names: Sequence[str],
    index_N: np.ndarray,
) -> Path:
    """Writes a GLUE submission file of indices and predictions; returns its path.

    Args:
      directory: an existing directory.
      task: a key of GLUE_FILES.
      predicted_N: int classes or float scores.
      names: class names.
      index_N: int, each example's index in GLUE's test file.
    """
    name, by_number = GLUE_FILES[task]
    if np.issubdtype(predicted_N.dtype, np.floating):
        values = [f"{score:.3f}" for score in np.clip(predicted_N, *SCORE_RANGE)]
    else:
        values = [str(n) if by_number else names[n] for n in predicted_N]
    rows = [f"{index_N[i]}\t{values[i]}\n" for i in np.argsort(index_N)]
    _write(directory / name, ["index\tprediction\n", *rows])
    return directory / name


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
    """Writes words, reference tags if known, and predicted tags for conlleval."""
    lines = []
    for i, words in enumerate(sentences.words):
        columns = [words, predicted[i]]
        if sentences.tags is not None:
            columns.insert(1, sentences.tags[i])
        lines += [" ".join(row) + "\n" for row in zip(*columns, strict=True)]
        lines.append("\n")
    _write(path, lines)


def write_json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes one JSON object per line."""
    _write(path, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _write(path: Path, lines: Iterable[str]) -> None:
    with storage.open_own(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
