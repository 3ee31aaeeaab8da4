"""Converts input lines to unlabelled examples, for every kind of task."""

import numpy as np

from bert_jax.errors import ConfigError
from bert_jax.finetuning.config import Task, TextTask
from bert_jax.finetuning.data.conll import Sentences
from bert_jax.finetuning.data.examples import Choices, Texts
from bert_jax.finetuning.data.squad import Question, Questions
from bert_jax.finetuning.task import Examples
from bert_jax.inference import text_input
from bert_jax.inference.text_input import Parts

# Kind -> minimum and maximum number of parts of a line, and its form.
PARTS = {
    "tagging": (1, 1, "words separated by blanks"),
    "question_answering": (2, 2, "question ||| paragraph"),
    "multiple_choice": (3, 100, "context ||| choice ||| choice ..."),
    "similarity": (2, 2, "text ||| text"),
}
# The same, indexed by the number of texts per example that a model was fine-tuned on; 0
# means unknown.
PARTS_OF_TEXTS = (
    (1, 2, "a text, or two separated by |||"),
    (1, 1, "a text"),
    (2, 2, "text ||| text"),
)
READ_AS_ONE = f"lines with {text_input.SEPARATOR!r}, read as single texts"


def parts_of(task_config: Task) -> tuple[int, int, str]:
    """Returns the minimum and maximum number of parts of a line, and its form."""
    if isinstance(task_config, TextTask):
        return PARTS_OF_TEXTS[len(task_config.text)]
    return PARTS[task_config.kind]


def examples_of(
    task_config: Task, texts: list[Parts], num_parts: int, has_impossible: bool
) -> Examples:
    """Converts lines to unlabelled examples of a task.

    Args:
      task_config: the task of the model.
      texts: lines, split into parts.
      num_parts: number of parts that each line must have.
      has_impossible: whether a question may have no answer.

    Raises:
      ConfigError: if a line has too few or too many parts.
    """
    kind = task_config.kind
    least, most, words = parts_of(task_config)
    for parts in texts:
        if not least <= len(parts) <= most or len(parts) != num_parts:
            alike = "" if least == most else ", with as many parts as the first line"
            raise ConfigError(
                f"--input has the line {text_input.SEPARATOR.join(parts)[:60]!r} with"
                f" {len(parts)} part{'s' * (len(parts) > 1)}; each line must be {words}"
                f"{alike}"
            )
    if kind == "tagging":
        return Sentences("--input", [parts[0].split() or [""] for parts in texts], None)
    if kind == "question_answering":
        questions = [
            Question(str(i), parts[0].strip(), i, (), False)
            for i, parts in enumerate(texts)
        ]
        return Questions([parts[1] for parts in texts], questions, has_impossible, 0, 0)
    if kind == "multiple_choice":
        return Choices(
            [parts[0] for parts in texts], [list(parts[1:]) for parts in texts], None
        )
    b = [parts[1] for parts in texts] if num_parts == 2 else None
    return Texts([parts[0] for parts in texts], b, None, np.arange(len(texts)))
