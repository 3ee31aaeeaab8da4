"""Reads the labelled data sets of a config and converts them to rows of token ids."""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.errors import ConfigError
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.data import batches
from bert_jax.finetuning.tasks.base import Role


@dataclasses.dataclass(frozen=True)
class Split:
    """One data set.

    Attributes:
      spec: the spec of the set.
      examples: its `Examples`, of the subclass that the task reads.
      features: their rows, which are `Features` of the task.
    """

    spec: str
    examples: Any
    features: Any


@dataclasses.dataclass(frozen=True)
class Datasets:
    """The data sets of a config.

    Attributes:
      names: label names of the head; () if its outputs have no names.
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
    digest.update(split.examples.references())
    for rows_B in batches.in_order(len(split.features), 1024):
        for name, array in sorted(split.features.batch(rows_B).items()):
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return digest.digest()


def read(config: FinetuneConfig, tokenizer: Tokenizer) -> Datasets:
    """Reads all data sets of a config."""
    task, header, length = config.task, config.data.header, config.sequence_length
    names = task.label_names(config.data.train, header)

    def split(spec: str, role: Role) -> Split:
        found: Any = task.read(spec, header, names, role)
        if role == "test":
            found = found.as_test_set(train.examples)
        elif not found.is_labelled:
            raise ConfigError(
                f"{spec} has no labels; config.data.train and config.data.dev need"
                " labels: check the columns that config.task names"
            )
        features = task.featurize(found, names, tokenizer, length, role)
        if not len(features):
            raise ConfigError(f"{spec} has no examples; {found.why_empty()}")
        return Split(spec, found, features)

    train = split(config.data.train, "train")
    return Datasets(
        names,
        train,
        tuple(split(spec, "dev") for spec in config.data.dev),
        tuple(split(spec, "test") for spec in config.data.test),
    )
