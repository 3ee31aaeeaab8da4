"""Reads the labelled data sets of a config and converts them to rows of token ids."""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.errors import ConfigError
from bert_jax.finetuning import task
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.data import batches, squad
from bert_jax.finetuning.data.conll import Sentences
from bert_jax.finetuning.data.squad import Questions
from bert_jax.finetuning.task import Examples, Features


@dataclasses.dataclass(frozen=True)
class Split:
    """One data set: its spec, examples and rows."""

    spec: str
    examples: Examples
    features: Features


@dataclasses.dataclass(frozen=True)
class Datasets:
    """The data sets of a config.

    Attributes:
      names: label names of the head; () for questions, choices and similarity.
      train: the training set.
      dev: dev sets; the first one selects the best checkpoint.
      test: test sets, whose labels are not used.
    """

    names: tuple[str, ...]
    train: Split
    dev: tuple[Split, ...]
    test: tuple[Split, ...]

    def sha256(self) -> dict[str, str]:
        """Returns SHA-256 digests: "train" of the training set, "dev" of all dev sets.

        They cover the rows that the model reads and the label names.
        """
        dev = hashlib.sha256()
        for split in self.dev:
            dev.update(_digest(split, self.names))
        return {"train": _digest(self.train, self.names).hex(), "dev": dev.hexdigest()}


def _digest(split: Split, names: tuple[str, ...]) -> bytes:
    digest = hashlib.sha256(repr(names).encode())
    if isinstance(split.examples, Questions):
        # Rows of dev sets do not include the answers.
        digest.update(repr(split.examples.questions).encode())
    for rows_B in batches.in_order(len(split.features), 1024):
        for name, array in sorted(split.features.batch(rows_B).items()):
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return digest.digest()


def _has_labels(examples: Any) -> bool:
    if isinstance(examples, Sentences):
        return examples.tags is not None
    if isinstance(examples, Questions):
        return any(q.answers or q.is_impossible for q in examples.questions)
    return examples.labels is not None


def _reason(examples: Any) -> str:
    """Returns why a data set has no rows, and what to do."""
    if isinstance(examples, Questions):
        return (
            f"none of its {len(examples.questions)} questions has an answer that is in"
            " its paragraph near answer_start: correct the answers"
        )
    if num_unlabelled := getattr(examples, "num_unlabelled", 0):
        return f"none of its {num_unlabelled} examples has a label: label them"
    return "give a non-empty data set"


def read(config: FinetuneConfig, tokenizer: Tokenizer) -> Datasets:
    """Reads all data sets of a config.

    Raises:
      ConfigError: if a set cannot be read, is empty, or does not match the task.
    """
    names = task.label_names(config.task, config.data)

    def split(spec: str, *, has_labels: bool, is_training: bool = False) -> Split:
        found: Any = task.read(
            config.task,
            spec,
            config.data.header,
            names,
            has_labels=has_labels,
            is_training=is_training,
        )
        if isinstance(found, Questions) and not has_labels:
            # A test set hides whether questions may have no answer; the training set
            # shows it.
            has_impossible = train.examples.has_impossible
            found = dataclasses.replace(found, has_impossible=has_impossible)
        if isinstance(found, Questions) and not is_training:
            squad.check_ids(found, spec)
        if has_labels and not _has_labels(found):
            raise ConfigError(
                f"{spec} has no labels; config.data.train and config.data.dev need"
                " labels: check the columns that config.task names"
            )
        rows = found
        if isinstance(found, Sentences) and not has_labels:
            # Tags of a test set may have types that are not in the training set.
            rows = dataclasses.replace(found, tags=None)
        features = task.featurize(
            config.task,
            rows,
            names,
            tokenizer,
            config.sequence_length,
            is_training=is_training,
        )
        if not len(features):
            raise ConfigError(f"{spec} has no examples; {_reason(found)}")
        return Split(spec, found, features)

    train: Any = split(config.data.train, has_labels=True, is_training=True)
    return Datasets(
        names,
        train,
        tuple(split(spec, has_labels=True) for spec in config.data.dev),
        tuple(split(spec, has_labels=False) for spec in config.data.test),
    )
