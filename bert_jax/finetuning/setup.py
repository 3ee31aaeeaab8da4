"""The state that all runs of a sweep share: inputs, compiled step, and predictor."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.finetuning import step as tuning_step
from bert_jax.finetuning import task
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.data import batches
from bert_jax.finetuning.data.datasets import Datasets, Split
from bert_jax.finetuning.predictor import Predictor
from bert_jax.loading.model import HostModel, PlacedModel
from bert_jax.model import heads, parameters
from bert_jax.model.heads import Head
from bert_jax.training import compilation
from bert_jax.training import step as step_lib


@dataclasses.dataclass(frozen=True)
class Setup:
    """Inputs and compiled functions that all runs of a sweep share.

    Attributes:
      config: config of the sweep.
      encoder: the encoder that runs start from.
      is_from_scratch: whether runs use only the encoder's sizes and tokenizer, not its
        weights.
      datasets: the labelled data.
      sha256: digests of the data, from `Datasets.sha256`, and of the teacher.
      mesh: the current mesh.
      teacher: a model with the same head to distill from, or None.
    """

    config: FinetuneConfig
    encoder: HostModel
    is_from_scratch: bool
    datasets: Datasets
    sha256: dict[str, str]
    mesh: jax.sharding.Mesh
    teacher: PlacedModel | None = None

    @property
    def head(self) -> Head:
        kind, dropout_prob = self.config.task.kind, self.config.dropout.head_prob
        return Head(kind, self.datasets.names, dropout_prob)

    @property
    def model(self) -> ModelConfig:
        """Returns the encoder's config with the dropout rates of fine-tuning."""
        dropout = self.config.dropout
        return dataclasses.replace(
            self.encoder.config,
            hidden_dropout_prob=dropout.hidden_prob,
            attention_probs_dropout_prob=dropout.attention_prob,
        )

    def build(self, key: jax.Array) -> tuple[nnx.GraphDef, nnx.State]:
        """Returns the structure and initial parameters of the model with its head."""
        vocab_size = len(self.encoder.tokenizer.vocab)
        return heads.build(self.model, vocab_size, self.head, key)

    @functools.cached_property
    def graphdef(self) -> nnx.GraphDef:
        return parameters.structure(self.build)[0]

    @functools.cached_property
    def num_steps(self) -> int:
        """Returns the number of steps of a run."""
        recipe = self.config.recipe
        num_rows = len(self.datasets.train.features)
        return batches.num_steps(num_rows, recipe.num_epochs, recipe.global_batch_size)

    @functools.cached_property
    def train_step(self) -> Any:
        """Returns the jitted train step, shared by all learning rates and seeds."""
        step = tuning_step.make_train_step(
            self.config,
            self.graphdef,
            self.num_steps,
            self.teacher.graphdef if self.teacher else None,
        )
        return compilation.jit(step)

    @functools.cached_property
    def predictor(self) -> Predictor:
        """Returns the predictor, shared by all runs and data sets."""
        config = self.config
        return Predictor(
            self.graphdef,
            length=config.sequence_length,
            batch_size=config.recipe.global_batch_size,
            dtype=step_lib.compute_dtype(config.compute_dtype),
            mesh=self.mesh,
        )

    def predict(
        self,
        params: Any,
        split: Split,
        on_rows: Callable[[int], object] | None = None,
    ) -> Any:
        """Returns the predictions for a data set, see `task.predict`."""
        logits = self.predictor(params, split.features, on_rows)
        names = self.datasets.names
        return task.predict(
            self.config.task, split.examples, split.features, logits, names
        )

    def evaluate(
        self,
        params: Any,
        split: Split,
        on_rows: Callable[[int], object] | None = None,
    ) -> dict[str, float]:
        """Returns the metrics of a labelled data set."""
        predicted = self.predict(params, split, on_rows)
        names = self.datasets.names
        return task.evaluate(self.config.task, split.examples, predicted, names)
