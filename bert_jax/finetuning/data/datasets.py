"""The labelled sets of a config, read and turned into rows once for all runs."""

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
    spec: str  # where it is from
    examples: Examples
    features: Features


@dataclasses.dataclass(frozen=True)
class Datasets:
    """What a config names.

    Attributes:
      names: of the head's labels; none for questions and choices.
      train: with labels.
      dev: with labels; the first chooses the best checkpoint.
      test: without labels.
    """

    names: tuple[str, ...]
    train: Split
    dev: tuple[Split, ...]
    test: tuple[Split, ...]

    def sha256(self) -> dict[str, str]:
        """Returns a digest of what training reads, and one of the dev sets."""
        dev = hashlib.sha256()
        for split in self.dev:
            dev.update(_digest(split, self.names))
        return {"train": _digest(self.train, self.names).hex(), "dev": dev.hexdigest()}


def _digest(split: Split, names: tuple[str, ...]) -> bytes:
    digest = hashlib.sha256(repr(names).encode())
    if isinstance(split.examples, Questions):  # answers are no part of dev features
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


def read(config: FinetuneConfig, tokenizer: Tokenizer) -> Datasets:
    """Reads all of a config's data.

    Raises:
      ConfigError: when a set cannot be read, is empty, or is not what the task says.
    """
    names = task.label_names(config.task, config.data)

    def split(spec: str, *, has_labels: bool, is_training: bool = False) -> Split:
        found: Any = task.read(
            config.task, spec, config.data.header, names, has_labels=has_labels
        )
        if isinstance(found, Questions) and not has_labels:
            # Whether there may be no answer is the task's, not a test set's to say.
            may_be_none = train.examples.has_impossible
            found = dataclasses.replace(found, has_impossible=may_be_none)
        if isinstance(found, Questions) and not is_training:
            squad.check_ids(found, spec)
        if has_labels and not _has_labels(found):
            raise ConfigError(
                f"{spec} has no labels; config.data.train and dev need some, and"
                " config.task says where they are"
            )
        rows = found
        if isinstance(found, Sentences) and not has_labels:
            # Its tags, if there are any, may be of types that training has not.
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
            raise ConfigError(f"{spec} has no examples; give data that has some")
        return Split(spec, found, features)

    train: Any = split(config.data.train, has_labels=True, is_training=True)
    return Datasets(
        names,
        train,
        tuple(split(spec, has_labels=True) for spec in config.data.dev),
        tuple(split(spec, has_labels=False) for spec in config.data.test),
    )
