"""The config of a run: schema.py declares it, conditions.py builds and checks it."""

from bert_jax.config import added_keys
from bert_jax.config.conditions import check_mesh, from_config_dict, from_json
from bert_jax.config.schema import (
    OPTIMIZERS,
    REMAT,
    SCHEDULES,
    TOKENIZER_KINDS,
    CheckpointConfig,
    ComputeDtype,
    DataConfig,
    ExperimentConfig,
    LossWeightsConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    Remat,
    TokenizerConfig,
    TokenizerKind,
    Tracker,
)
from bert_jax.config.validation import build, flatten, multiples_around

__all__ = [
    "OPTIMIZERS",
    "REMAT",
    "SCHEDULES",
    "TOKENIZER_KINDS",
    "CheckpointConfig",
    "ComputeDtype",
    "DataConfig",
    "ExperimentConfig",
    "LossWeightsConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PhaseConfig",
    "Remat",
    "TokenizerConfig",
    "TokenizerKind",
    "Tracker",
    "added_keys",
    "build",
    "check_mesh",
    "flatten",
    "from_config_dict",
    "from_json",
    "multiples_around",
]
