"""Writes the submission files of GLUE.

Shapes: N example.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_jax.finetuning.data import examples

# Task -> the file name that gluebenchmark.com requires, and whether its predictions are
# class numbers rather than names.
FILES = {
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
SCORE_RANGE = (0.0, 5.0)  # of STS-B, the only regression task of GLUE


def write(
    directory: Path,
    task: str,
    predicted_N: np.ndarray,
    names: Sequence[str],
    index_N: np.ndarray,
) -> Path:
    """Writes a submission file of indices and predictions; returns its path.

    Args:
      directory: an existing directory.
      task: a key of FILES.
      predicted_N: int classes or float scores.
      names: class names.
      index_N: int, each example's index in GLUE's test file.
    """
    name, by_number = FILES[task]
    if np.issubdtype(predicted_N.dtype, np.floating):
        values = [f"{score:.3f}" for score in np.clip(predicted_N, *SCORE_RANGE)]
    else:
        values = [str(n) if by_number else names[n] for n in predicted_N]
    lines = [f"{index_N[i]}\t{values[i]}\n" for i in np.argsort(index_N)]
    examples.write_lines(directory / name, ["index\tprediction\n", *lines])
    return directory / name
