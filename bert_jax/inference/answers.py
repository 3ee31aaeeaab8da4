"""Predicts one result per line of input."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special

from bert_jax.finetuning import task
from bert_jax.finetuning.config import (
    Task,
    TextTask,
)
from bert_jax.finetuning.data.examples import Choices
from bert_jax.finetuning.predictor import Predictor
from bert_jax.inference import line_input, text_input
from bert_jax.inference.text_input import Parts
from bert_jax.loading.model import Trained
from bert_jax.model.heads import Head

# Keys of discrete predictions, which are compared for equality.
ANSWERS = ("label", "labels", "choice", "tags", "answer")

# Attributes of features that count truncation -> their description in the log.
CUT = {
    "num_truncated": "rows truncated to --max_length",
    "num_cut": "words beyond --max_length, predicted as O",
}


class LinePredictor:
    """Predicts one result per input line.

    Attributes:
      num_cut: counts of truncated rows or words, by their description.
      on_rows: called after each batch with the number of rows in it.
    """

    def __init__(
        self,
        model: Trained,
        task_config: Task,
        predictor: Predictor,
        *,
        length: int,
        has_impossible: bool,
    ):
        """Initializes the predictor.

        Args:
          model: a model with a head.
          task_config: a task of the head's kind, with its decision settings.
          predictor: computes the model's logits.
          length: tokens of a row, the same as the predictor's.
          has_impossible: whether a question may have no answer.
        """
        assert model.head is not None
        self._model, self._head, self._task = model, model.head, task_config
        self._predictor, self._length = predictor, length
        self._has_impossible = has_impossible
        self._num_parts: int | None = None  # set by the first line
        self.num_cut: collections.Counter[str] = collections.Counter()
        self.on_rows: Callable[[int], object] | None = None

    def __call__(self, texts: list[Parts]) -> list[dict[str, Any]]:
        """Returns one JSON-serializable result per line, in order."""
        self._num_parts = self._num_parts or len(texts[0])
        found: Any = line_input.examples_of(
            self._task, texts, self._num_parts, self._has_impossible
        )
        if isinstance(self._task, TextTask) and len(self._task.text) == 1:
            self.num_cut[line_input.READ_AS_ONE] += sum(
                text_input.SEPARATOR in text for (text,) in texts
            )
        names = self._head.labels
        features = task.featurize(
            self._task,
            found,
            names,
            self._model.tokenizer,
            self._length,
            is_training=False,
        )
        for name, words in CUT.items():
            self.num_cut[words] += getattr(features, name, 0)
        logits = self._predictor(self._model.params, features, self.on_rows)
        predicted = task.predict(self._task, found, features, logits, names)
        return _rows(self._head, found, predicted, logits)


def _rows(
    head: Head, found: Any, predicted: Any, logits: np.ndarray
) -> list[dict[str, Any]]:
    if head.kind == "tagging":
        pairs = zip(found.words, predicted, strict=True)
        # A blank line was given one empty word, because a row needs a word.
        return [
            {"words": words, "tags": tags}
            if words != [""]
            else {"words": [], "tags": []}
            for words, tags in pairs
        ]
    if head.kind == "question_answering":
        return [
            {
                "question": question.text,
                "answer": predicted.texts[question.id],
                "best": [_rounded(span) for span in predicted.best[question.id]],
            }
            for question in found.questions
        ]
    if head.kind in ("regression", "similarity"):
        name = "score" if head.kind == "regression" else "similarity"
        return [
            {"text": text, name: round(float(score), 6)}
            for text, score in zip(_texts(found), predicted, strict=True)
        ]
    if head.kind == "multi_label":
        probs = scipy.special.expit(logits)
        chosen = [_chosen_names(head.labels, row) for row in predicted]
    else:
        probs = scipy.special.softmax(logits, axis=-1)
        labels = head.labels
        chosen = [labels[i] if labels else int(i) for i in predicted]
    names = head.labels or [str(i) for i in range(logits.shape[1])]
    key = {"multi_label": "labels", "multiple_choice": "choice"}.get(head.kind, "label")
    return [
        {
            "text": text,
            key: choice,
            "probabilities": {
                name: round(float(prob), 6)
                for name, prob in zip(names, row, strict=True)
            },
        }
        for text, choice, row in zip(_texts(found), chosen, probs, strict=True)
    ]


def _rounded(span: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in span.items()
    }


def difference(exact: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """Returns a sentence on how much results differ from the exact ones."""
    for key in ANSWERS:
        if key in exact[0]:
            same = sum(a[key] == b[key] for a, b in zip(exact, found, strict=True))
            return f"{same} of the first {len(exact)} lines have the same {key}"
    key = next(key for key in exact[0] if key != "text")
    changes = [a[key] - b[key] for a, b in zip(exact, found, strict=True)]
    most = np.abs(changes).max()
    return f"in the first {len(exact)} lines, {key} changed by at most {most:.2g}"


def _chosen_names(names: Sequence[str], is_chosen: np.ndarray) -> list[str]:
    return [name for name, chosen in zip(names, is_chosen, strict=True) if chosen]


def _texts(found: Any) -> list[str]:
    """Reconstructs the input lines from the examples."""
    if isinstance(found, Choices):
        pairs = zip(found.contexts, found.choices, strict=True)
        return [text_input.SEPARATOR.join([a, *choices]) for a, choices in pairs]
    if found.b is None:
        return found.a
    pairs = zip(found.a, found.b, strict=True)
    return [text_input.SEPARATOR.join(pair) for pair in pairs]
