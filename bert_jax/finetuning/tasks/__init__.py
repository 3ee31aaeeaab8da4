"""The kinds of tasks: config keys, data, features, losses, metrics and results."""

from bert_jax.config.validation import members
from bert_jax.finetuning.tasks.base import Task
from bert_jax.finetuning.tasks.choice import MultipleChoice
from bert_jax.finetuning.tasks.question import QuestionAnswering
from bert_jax.finetuning.tasks.similarity import Similarity
from bert_jax.finetuning.tasks.tagging import Tagging
from bert_jax.finetuning.tasks.text import Classification, MultiLabel, Regression

AnyTask = (
    Classification
    | Regression
    | MultiLabel
    | MultipleChoice
    | Tagging
    | QuestionAnswering
    | Similarity
)
TASKS: dict[str, type[Task]] = members(AnyTask)
HEADS = tuple(task.head for task in TASKS.values())
