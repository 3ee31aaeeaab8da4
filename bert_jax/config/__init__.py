"""The config of a run: schema.py declares it, conditions.py builds and checks it."""

from bert_jax.config.conditions import check_mesh as check_mesh
from bert_jax.config.conditions import from_config_dict as from_config_dict
from bert_jax.config.conditions import from_saved as from_saved
from bert_jax.config.schema import OPTIMIZERS as OPTIMIZERS
from bert_jax.config.schema import REMAT as REMAT
from bert_jax.config.schema import TOKENIZER_KINDS as TOKENIZER_KINDS
from bert_jax.config.schema import CheckpointConfig as CheckpointConfig
from bert_jax.config.schema import DataConfig as DataConfig
from bert_jax.config.schema import ExperimentConfig as ExperimentConfig
from bert_jax.config.schema import LossWeightsConfig as LossWeightsConfig
from bert_jax.config.schema import MeshConfig as MeshConfig
from bert_jax.config.schema import ModelConfig as ModelConfig
from bert_jax.config.schema import PhaseConfig as PhaseConfig
from bert_jax.config.schema import TokenizerConfig as TokenizerConfig
from bert_jax.config.schema import TokenizerKind as TokenizerKind
from bert_jax.config.validation import MayChange as MayChange
from bert_jax.config.validation import build as build
from bert_jax.config.validation import flatten as flatten
from bert_jax.config.validation import leaves as leaves
from bert_jax.config.validation import multiples_around as multiples_around
