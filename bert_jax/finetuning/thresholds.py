"""How a tuned model's logits become answers: numbers that stand beside its weights.

Hugging Face's config.json has no place for them. `predict` begins with these, so that
it says what the predictions of the tuning run said.
"""

import sys
from pathlib import Path
from typing import Any

from bert_jax import config as config_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning.config import QuestionTask, Task, TextTask
from bert_jax.interop import files
from bert_jax.storage import read_json, write_json

FILE = "decisions.json"
# Of a model that was tuned elsewhere: the defaults of the released run_squad.py.
QUESTIONS: dict[str, Any] = {
    "stride": 0,
    "max_query_length": 64,
    "max_answer_length": 30,
    "null_threshold": 0.0,
    "has_impossible": False,
}
TEXTS: dict[str, Any] = {"num_texts": 0}  # 1 single texts, 2 pairs, 0 unknown
DEFAULTS = {
    "question_answering": QUESTIONS,
    "classification": TEXTS,
    "regression": TEXTS,
    "multi_label": TEXTS | {"threshold": 0.5},
}
RANGES = {"num_texts": (0, 2), "stride": (0, sys.maxsize)}  # others from 1 on


def defaults(kind: str) -> dict[str, Any]:
    """Returns the numbers of a kind of task for a model without the file."""
    return DEFAULTS.get(kind, {})


def write(directory: Path, task: Task, has_impossible: bool) -> None:
    """Writes those of a task, if its kind has any, into a model's directory.

    Args:
      directory: that exists.
      task: what the model was tuned on.
      has_impossible: whether its questions may have no answer.
    """
    if isinstance(task, QuestionTask | TextTask) and (keys := defaults(task.kind)):
        values = vars(task) | {"has_impossible": has_impossible}
        if isinstance(task, TextTask):
            values["num_texts"] = len(task.text)
        write_json(directory / FILE, {key: values[key] for key in keys})


def read(directory: Path, kind: str) -> dict[str, Any]:
    """Returns the numbers of a model, those of `defaults` where it does not say.

    Raises:
      ConfigError: when the file is damaged.
    """
    found = defaults(kind)
    path = directory / FILE
    if not found or not path.is_file():
        return found
    said = read_json(files.file(directory, FILE))
    numbers = {
        key: config_lib.build(type(value), said.get(key, value), f"{path}: {key}")
        for key, value in found.items()
    }
    for key, value in numbers.items():
        least, most = RANGES.get(key, (1, sys.maxsize))
        if type(value) is int and not least <= value <= most:
            limit = f" and at most {most}" if most < sys.maxsize else ""
            raise ConfigError(
                f"{path} has {key}={value}; it must be at least {least}{limit}"
            )
    return numbers
