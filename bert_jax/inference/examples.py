"""Converts inputs to unlabelled examples, for every kind of task."""

import numpy as np

from bert_jax.errors import ConfigError
from bert_jax.finetuning.config import Task, TextTask
from bert_jax.finetuning.data.conll import Sentences
from bert_jax.finetuning.data.examples import Choices, Texts
from bert_jax.finetuning.data.squad import Question, Questions
from bert_jax.finetuning.task import Examples
from bert_jax.inference.options import Parts

# Kind -> minimum and maximum number of texts of an input, and its form.
PARTS = {
    "tagging": (1, 1, "words separated by spaces"),
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


def parts_of(task_config: Task) -> tuple[int, int, str]:
    """Returns the minimum and maximum number of texts of an input, and its form."""
    if isinstance(task_config, TextTask):
        return PARTS_OF_TEXTS[len(task_config.text)]
    return PARTS[task_config.kind]


def check(task_config: Task, inputs: list[Parts]) -> None:
    """Raises ConfigError if an input has too few or too many texts."""
    least, most, form = parts_of(task_config)
    for i, parts in enumerate(inputs):
        if not least <= len(parts) <= most or len(parts) != len(inputs[0]):
            alike = "" if least == most else ", with as many texts as the first"
            raise ConfigError(
                f"input {i} ({' ||| '.join(parts)[:60]!r}) has {len(parts)}"
                f" text{'s' * (len(parts) != 1)}; each input must be {form}{alike}"
            )


def examples_of(
    task_config: Task, inputs: list[Parts], has_impossible: bool
) -> Examples:
    """Converts inputs to unlabelled examples of a task.

    Args:
      task_config: the task of the model.
      inputs: at least one input; all have the same number of texts.
      has_impossible: whether a question may have no answer.

    Raises:
      ConfigError: as `check`.
    """
    check(task_config, inputs)
    kind = task_config.kind
    if kind == "tagging":
        return Sentences("inputs", [parts[0].split() or [""] for parts in inputs], None)
    if kind == "question_answering":
        questions = [
            Question(str(i), parts[0].strip(), i, (), False)
            for i, parts in enumerate(inputs)
        ]
        return Questions(
            [parts[1] for parts in inputs], questions, has_impossible, 0, 0
        )
    if kind == "multiple_choice":
        return Choices(
            [parts[0] for parts in inputs], [list(parts[1:]) for parts in inputs], None
        )
    b = [parts[1] for parts in inputs] if len(inputs[0]) == 2 else None
    return Texts([parts[0] for parts in inputs], b, None, np.arange(len(inputs)))
