"""The model that probes score."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ExperimentConfig
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.training import step as step_lib

# Rows of a step, at most: larger batches of short rows are no faster.
MAX_ROWS = 256


@dataclasses.dataclass(frozen=True)
class Target:
    """The model of a pretraining run.

    Attributes:
      config: the config of the run.
      tokenizer: its tokenizer.
      graphdef: structure of its `BertForPreTraining`.
      mesh: the mesh of its parameters.
    """

    config: ExperimentConfig
    tokenizer: Tokenizer
    graphdef: nnx.GraphDef
    mesh: jax.sharding.Mesh

    @property
    def max_length(self) -> int:
        """Maximum tokens of a row."""
        return self.config.model.max_position_embeddings

    @property
    def batch_size(self) -> int:
        """Rows of a step, with at most the tokens of a microbatch of training."""
        tokens = min(
            phase.global_batch_size * phase.sequence_length
            for phase in self.config.phases
        )
        size = tokens // self.config.accumulation_steps // self.max_length
        return max(min(size, MAX_ROWS), 1)

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the computation, that of training."""
        return step_lib.compute_dtype(self.config.compute_dtype)
