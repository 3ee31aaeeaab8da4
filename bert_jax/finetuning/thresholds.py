"""Decision settings of a fine-tuned model, stored in decisions.json beside its weights.

They determine how logits are converted to predictions. Hugging Face's config.json has
no keys for them. `predict` reads them, so that its predictions equal those of the
fine-tuning run.
"""

import sys
from pathlib import Path
from typing import Any

from bert_jax import config as config_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning.config import QuestionTask, Task, TextTask
from bert_jax.interop import files
from bert_jax.small_files import read_json, write_json

FILE = "decisions.json"
# For a model without the file, these are the defaults of the released run_squad.py.
QUESTION_DEFAULTS: dict[str, Any] = {
    "stride": 0,
    "max_query_length": 64,
    "max_answer_length": 30,
    "null_threshold": 0.0,
    "has_impossible": False,
}
# num_texts is 1 for single texts, 2 for pairs, and 0 if unknown.
TEXT_DEFAULTS: dict[str, Any] = {"num_texts": 0}
DEFAULTS = {
    "question_answering": QUESTION_DEFAULTS,
    "classification": TEXT_DEFAULTS,
    "regression": TEXT_DEFAULTS,
    "multi_label": TEXT_DEFAULTS | {"threshold": 0.5},
}
# Ranges of integers; the others must be at least 1.
RANGES = {"num_texts": (0, 2), "stride": (0, sys.maxsize)}


def defaults(kind: str) -> dict[str, Any]:
    """Returns the settings of a kind of task for a model without decisions.json."""
    return DEFAULTS.get(kind, {})


def write(directory: Path, task: Task, has_impossible: bool) -> None:
    """Writes decisions.json into a model's directory, if the kind of task has settings.

    Args:
      directory: an existing directory.
      task: the task that the model was fine-tuned on.
      has_impossible: whether its questions may have no answer.
    """
    if isinstance(task, QuestionTask | TextTask) and (keys := defaults(task.kind)):
        values = vars(task) | {"has_impossible": has_impossible}
        if isinstance(task, TextTask):
            values["num_texts"] = len(task.text)
        write_json(directory / FILE, {key: values[key] for key in keys})


def read(directory: Path, kind: str, **given: Any) -> dict[str, Any]:
    """Reads a model's settings; missing ones have the values of `defaults`.

    Args:
      directory: the directory of the model.
      kind: the kind of its task.
      **given: settings that replace the model's; None keeps the model's.

    Raises:
      ConfigError: if the file is corrupt, a value is out of range, or a given setting
        does not apply to the kind of task.
    """
    found = defaults(kind)
    path = directory / FILE
    if found and path.is_file():
        stored = read_json(files.file(directory, FILE))
        found = {
            key: config_lib.build(type(value), stored.get(key, value), f"{path}: {key}")
            for key, value in found.items()
        }
        _check_ranges(found, f"{path} has ")
    given = {key: value for key, value in given.items() if value is not None}
    for key, value in given.items():
        if key not in found:
            raise ConfigError(
                f"{key}={value} does not apply to a model fine-tuned for {kind}; remove"
                " it"
            )
    _check_ranges(given, "")
    return found | given


def _check_ranges(settings: dict[str, Any], prefix: str) -> None:
    """Raises ConfigError if an integer is out of its range."""
    for key, value in settings.items():
        least, most = RANGES.get(key, (1, sys.maxsize))
        if type(value) is int and not least <= value <= most:
            limit = f" and at most {most}" if most < sys.maxsize else ""
            raise ConfigError(
                f"{prefix}{key}={value}; it must be at least {least}{limit}"
            )
