"""The stages of a fine-tuning task, from data to metrics, for every kind of task.

Kinds differ in their data, their rows, and the meaning of their logits; this module
hides the differences from the training loop. The functions are in the order in which
a run calls them.

Shapes: N row of the features, C class or choice, T token.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.errors import ConfigError
from bert_jax.finetuning import answers, metrics, predictions, squad_metrics
from bert_jax.finetuning.answers import Answers
from bert_jax.finetuning.config import (
    ChoiceTask,
    DataConfig,
    QuestionTask,
    SimilarityTask,
    TaggingTask,
    Task,
    TextTask,
)
from bert_jax.finetuning.data import conll, examples, squad, tables
from bert_jax.finetuning.data.conll import Sentences
from bert_jax.finetuning.data.examples import Choices, Texts
from bert_jax.finetuning.data.squad import Questions
from bert_jax.finetuning.features import question as question_features
from bert_jax.finetuning.features import tagging as tagging_features
from bert_jax.finetuning.features import text as text_features

Examples = Texts | Choices | Sentences | Questions


class Features(Protocol):
    """Rows for a model, as made by the modules in features/."""

    def __len__(self) -> int: ...

    def num_tokens(self) -> np.ndarray: ...

    def batch(self, rows_B: np.ndarray, /) -> dict[str, np.ndarray]: ...


def has_pairs(task: Task) -> bool:
    """Returns whether a row of a task has two texts."""
    if isinstance(task, TextTask):
        return len(task.text) == 2
    return isinstance(task, QuestionTask | ChoiceTask)


def label_names(task: Task, data: DataConfig) -> tuple[str, ...]:
    """Returns the label names of the head, from the config or the training set.

    Kinds without label names return ().

    Raises:
      ConfigError: if the training set cannot be read.
    """
    if isinstance(task, QuestionTask | ChoiceTask | SimilarityTask):
        return ()
    if task.labels:
        return task.labels
    if isinstance(task, TaggingTask):
        found = conll.read(data.train, task.words, task.tags, has_tags=True)
        return conll.tag_names(found.tags or [])
    table = tables.read(data.train, data.header)
    return examples.label_names(table, task.label, task.kind)


def labels_key(task: TextTask | TaggingTask) -> str:
    """Returns the config key from which `label_names` takes the names."""
    return "config.task.labels" if task.labels else "config.data.train"


def read(
    task: Task,
    spec: str,
    header: tuple[str, ...],
    names: Sequence[str],
    *,
    has_labels: bool,
    is_training: bool = False,
) -> Examples:
    """Reads a training, dev or test set.

    Raises:
      ConfigError: if the data cannot be read or does not match the task.
    """
    if isinstance(task, QuestionTask):
        return squad.read(spec)
    if isinstance(task, TaggingTask):
        return conll.read(spec, task.words, task.tags, has_tags=has_labels)
    table = tables.read(spec, header)
    if table.num_dropped and not has_labels:
        raise ConfigError(
            f"{spec}: line {table.first_dropped} has a different number of columns than"
            f" the first line (as do {table.num_dropped} lines in all); a test set"
            " needs a prediction for every line, so correct them"
        )
    label = task.label if has_labels else ""
    if isinstance(task, ChoiceTask):
        return examples.read_choices(table, task.text, task.choices, label)
    if isinstance(task, SimilarityTask):
        if is_training and task.positives:
            return examples.read_positives(table, task.positives)
        return examples.read_similarity(table, task.text, label, task.max_label)
    index = "" if has_labels else task.index
    columns = task.text, label, index
    return examples.read_texts(table, task.kind, *columns, names, labels_key(task))


def featurize(
    task: Task,
    found: Any,
    names: Sequence[str],
    tokenizer: Tokenizer,
    length: int,
    *,
    is_training: bool,
) -> Features:
    """Converts the examples that `read` returned to rows of token ids.

    Raises:
      ConfigError: if a tag is not among the names.
    """
    if isinstance(task, QuestionTask):
        return question_features.from_questions(
            found,
            tokenizer,
            length=length,
            stride=task.window_stride(length),
            max_query_length=task.max_query_length,
            is_training=is_training,
        )
    if isinstance(task, TaggingTask):
        key = labels_key(task)
        return tagging_features.from_sentences(found, names, tokenizer, length, key)
    if isinstance(task, ChoiceTask):
        return text_features.from_choices(found, tokenizer, length)
    if isinstance(task, SimilarityTask):
        return text_features.from_separate_texts(found, tokenizer, length)
    return text_features.from_texts(found, tokenizer, length)


def predict(
    task: Task, found: Any, features: Any, logits: np.ndarray, names: Sequence[str]
) -> Any:
    """Converts the logits of all rows to predictions.

    Returns:
      int64[N] classes or choices, float32[N] scores or cosines, int64[N, C] sets of
      classes, the tags of every sentence's words, or `Answers`. Tags are BIO if all
      names are tags.
    """
    if isinstance(task, QuestionTask):
        return answers.find(
            found,
            features,
            logits,
            num_best=task.num_best,
            max_answer_length=task.max_answer_length,
            null_threshold=task.null_threshold,
        )
    if isinstance(task, TaggingTask):
        classes_NT = logits.argmax(axis=-1)
        of_words = features.word_classes(np.arange(len(features)), classes_NT)
        tags = [[str(names[i]) for i in classes] for classes in of_words]
        # Classes that are not entity tags, such as parts of speech, stay as they are.
        return [conll.to_bio(s) for s in tags] if conll.are_tags(names) else tags
    if task.kind == "regression":
        return logits[:, 0]
    if task.kind == "similarity":
        return logits
    if isinstance(task, TextTask) and task.kind == "multi_label":
        return (1 / (1 + np.exp(-logits)) > task.threshold).astype(np.int64)
    return logits.argmax(axis=-1)


def evaluate(
    task: Task, found: Any, predicted: Any, names: Sequence[str]
) -> dict[str, float]:
    """Returns the metrics of the predictions for labelled examples."""
    if isinstance(task, QuestionTask):
        scores = squad_metrics.score(found, predicted.texts, task.answer_units)
        if not found.has_impossible:
            return scores
        best = squad_metrics.best_thresholds(
            found, predicted.not_empty, predicted.null_odds, task.answer_units
        )
        return scores | best
    if isinstance(task, TaggingTask):
        return metrics.tagging(predicted, found.tags)
    if task.kind in ("regression", "similarity"):
        return metrics.regression(predicted, found.labels)
    if task.kind == "multi_label":
        return metrics.multi_label(predicted, found.labels)
    num_classes = len(names) or len(found.choices[0])
    return metrics.classification(predicted, found.labels, num_classes)


def write_predictions(
    task: Task,
    found: Any,
    predicted: Any,
    names: Sequence[str],
    directory: Path,
    glue: str = "",
) -> None:
    """Writes predictions in the format of the task's kind.

    Args:
      task, found, names: the arguments of `predict`.
      predicted: the result of `predict`.
      directory: an existing directory.
      glue: a key of `predictions.GLUE_FILES`, to write that file as well; "" to skip
        it.
    """
    if isinstance(predicted, Answers):
        predictions.write_squad(directory, predicted)
    elif isinstance(task, TaggingTask):
        predictions.write_conll(directory / "predictions.conll", found, predicted)
    else:
        rows = _rows(found, predicted.tolist(), names)
        predictions.write_json_lines(directory / "predictions.jsonl", rows)
        if glue:
            predictions.write_glue(directory, glue, predicted, names, found.index)


def _rows(found: Any, values: list[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    texts = found.contexts if isinstance(found, Choices) else found.a
    rows = []
    for i, value in enumerate(values):
        row: dict[str, Any] = {"text": texts[i]}
        if isinstance(found, Choices):
            row |= {"choice": value, "chosen": found.choices[i][value]}
        else:
            if found.b is not None:
                row["pair"] = found.b[i]
            row["label"] = _label(value, names)
        rows.append(row)
    return rows


def _label(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [name for name, is_there in zip(names, value, strict=True) if is_there]
    return value if isinstance(value, float) else names[value]
