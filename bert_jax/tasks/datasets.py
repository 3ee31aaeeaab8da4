"""The labelled sets of a config, read and turned into rows once for all runs."""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from bert_jax.config import ConfigError
from bert_jax.data.tokenizers import Tokenizer
from bert_jax.tasks import batches, task
from bert_jax.tasks.config import FinetuneConfig
from bert_jax.tasks.task import Examples, Features


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

    def sha256(self) -> str:
        """Returns a digest of all that training reads, which a run goes on with."""
        digest = hashlib.sha256(repr(self.names).encode())
        features = self.train.features
        for rows_B in batches.in_order(len(features), 1024):
            for name, array in sorted(features.batch(rows_B).items()):
                digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


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
        features = task.featurize(
            config.task,
            found,
            names,
            tokenizer,
            config.sequence_length,
            is_training=is_training,
        )
        if not len(features):
            raise ConfigError(f"{spec} has no examples; give data that has some")
        return Split(spec, found, features)

    return Datasets(
        names,
        split(config.data.train, has_labels=True, is_training=True),
        tuple(split(spec, has_labels=True) for spec in config.data.dev),
        tuple(split(spec, has_labels=False) for spec in config.data.test),
    )
