"""The best of several continuations of a text.

Shapes: N example, B example of the batch, C choice, T token.
"""

import dataclasses
from typing import Annotated, Any, Literal

import numpy as np

from bert_jax.config.validation import Length
from bert_jax.errors import ConfigError
from bert_jax.finetuning import metrics as metrics_lib
from bert_jax.finetuning import tables
from bert_jax.finetuning.tasks import base
from bert_jax.finetuning.tasks.base import Examples, Form, Task
from bert_jax.finetuning.tasks.text import TextColumns, text_features
from bert_jax.model import heads
from bert_jax.model.heads import HeadType

KEY = "config.task.choices"


@dataclasses.dataclass(frozen=True)
class Choices(Examples):
    """Contexts, each with the same number of choices."""

    contexts: list[str]  # one text per example
    choices: list[list[str]]
    # int32[N], index of the correct choice, from 0; None for a test set
    labels: np.ndarray | None

    def write(self, directory, predicted, names):
        rows = [
            {"text": context, "choice": choice, "chosen": choices[choice]}
            for context, choices, choice in zip(
                self.contexts, self.choices, predicted.tolist(), strict=True
            )
        ]
        base.write_json_lines(directory / "predictions.jsonl", rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoice(Task):
    kind: Literal["multiple_choice"]  # what to predict
    text: TextColumns  # context column; optionally a column prefixed to all choices
    # one column per choice, or a single column of lists
    choices: Annotated[tuple[str, ...], Length(min=1)]
    label: str  # column of the correct choice's index, from 0

    head = HeadType(
        "multiple_choice", heads.BertForMultipleChoice, "BertForMultipleChoice"
    )
    metrics = ("accuracy",)
    pipeline = "multiple-choice"
    has_pairs = True
    form = Form(
        3,
        100,
        "context ||| choice ||| choice ...",
        "She opened the door. ||| She went in. ||| It was red.",
    )

    def parse(self, table, names, role) -> Choices:
        contexts, *prefixes = (
            tables.texts(table, column, "config.task.text") for column in self.text
        )
        if len(self.choices) == 1:
            found = table.convert(self.choices[0], KEY, _list)
        else:
            columns = (tables.texts(table, name, KEY) for name in self.choices)
            found = list(map(list, zip(*columns, strict=True)))
        number = len(found[0])
        for row, texts in enumerate(found):
            if len(texts) != number:
                raise ConfigError(
                    f"{table.spec}, example {row + 1}, has {len(texts)} choices, but"
                    f" the first has {number}; all need the same number"
                )
        if prefixes:
            found = [
                [f"{prefix} {choice}" for choice in texts]
                for prefix, texts in zip(prefixes[0], found, strict=True)
            ]
        if role == "test":
            return Choices(contexts, found, None)
        numbers = [str(i) for i in range(number)]
        correct = tables.classes(table, self.label, numbers, KEY)
        return base.labelled(Choices(contexts, found, correct))

    def of_inputs(self, inputs, settings):
        return Choices([x[0] for x in inputs], [[*x[1:]] for x in inputs], None)

    def featurize(self, examples, names, tokenizer, length, role):
        """Converts each choice to a row [CLS] context [SEP] choice [SEP]."""
        # Without labels, no example is left, which `read_datasets` reports.
        num_choices = len(examples.choices[0]) if examples.choices else 1
        contexts = [text for text in examples.contexts for _ in range(num_choices)]
        flat = [text for texts in examples.choices for text in texts]
        return text_features(
            contexts, flat, examples.labels, tokenizer, length, num_choices
        )

    def predict(self, examples, features, logits, names) -> np.ndarray:
        """Returns int64[N], the index of the best choice."""
        return logits.argmax(axis=-1)

    def evaluate(self, examples, predicted, names):
        num_choices = len(examples.choices[0])
        return metrics_lib.classification(predicted, examples.labels, num_choices)

    def results(self, examples, predicted, logits, names):
        import scipy.special  # slow to import

        probs_NC = scipy.special.softmax(logits, axis=-1)
        numbers = [str(i) for i in range(logits.shape[1])]
        chosen = [int(i) for i in predicted]
        return base.choices_with_probabilities("choice", chosen, probs_NC, numbers)


def _list(value: Any) -> list[str]:
    found = tables.as_list(value)
    if found is None:
        raise ValueError(
            f"has {value!r} in the only column of {KEY}; a single column must contain"
            " lists"
        )
    return [tables.text(item, KEY) for item in found]
