"""Stores the results of fine-tuning runs, and ranks them."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax import small_files
from bert_jax.errors import CorruptError

RESULT_FILE = "result.json"


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
      learning_rate, seed: the learning rate and seed of the run.
      diverged: the reason if the run diverged, otherwise "".
      best_step: the step with the best dev metric; 0 if the run diverged before its
        first evaluation.
      metrics: the dev metrics at that step.
      history: {"step": ..., metrics} of each evaluation.
    """

    learning_rate: float
    seed: int
    diverged: str
    best_step: int
    metrics: dict[str, float]
    history: tuple[dict[str, float], ...]


def runs_directory(workdir: str) -> str:
    """Returns the directory of the runs of a sweep."""
    return f"{workdir}/runs"


def directory_of(workdir: str, learning_rate: float, seed: int) -> str:
    """Returns the directory of one run of a sweep."""
    return f"{runs_directory(workdir)}/lr{learning_rate:g}_seed{seed}"


def write(workdir: str, result: Result) -> None:
    """Writes the result of a completed run into its directory."""
    small_files.write_json(Path(workdir) / RESULT_FILE, dataclasses.asdict(result))


def read(workdir: str) -> Result | None:
    """Returns the result of a completed run, None if it is not complete.

    Raises:
      CorruptError: if the file of the result is corrupt.
    """
    path = Path(workdir) / RESULT_FILE
    if not path.is_file():
        return None
    remedy = f"remove {workdir} to repeat the run"
    values: Any = small_files.read_json(path, remedy)
    try:
        return Result(**values | {"history": tuple(values["history"])})
    except (TypeError, KeyError):
        raise CorruptError(f"{path} is corrupt; {remedy}") from None


def read_all(directory: str) -> list[Result]:
    """Returns the results of all runs below a directory, by learning rate and seed."""
    found = [read(str(path)) for path in Path(directory).iterdir()]
    done = [result for result in found if result is not None]
    return sorted(done, key=lambda result: (-result.learning_rate, result.seed))


def best(history: Sequence[dict[str, float]], metric: str) -> dict[str, float]:
    """Returns the first entry with the highest metric; {} if there is none."""
    return max(history, key=lambda entry: worth(entry, metric), default={})


def worth(found: dict[str, Any], metric: str) -> float:
    """Returns the value that ranks metrics; NaN and a missing value rank last."""
    value = found.get(metric)  # metrics.jsonl has null for NaN
    return value if value is not None and math.isfinite(value) else -math.inf
