"""What does not divide is told with what would."""

import dataclasses

import pytest

from bert_jax import mesh_fit
from bert_jax.config import ConfigError
from tests.conftest import make_config, use_mesh

CONFIG = make_config(model__hidden_size=36, model__num_attention_heads=6)


def test_a_batch_that_does_not_divide():
    mesh = use_mesh(2, 2, 1)
    mesh_fit.check_batch("config.x", 24, 3, mesh)
    with pytest.raises(ConfigError, match=r"config.x=20 must be .* = 12; try 12 or 24"):
        mesh_fit.check_batch("config.x", 20, 3, mesh)
    with pytest.raises(ConfigError, match=r"config.x=5 must be .* = 12; try 12$"):
        mesh_fit.check_batch("config.x", 5, 3, mesh)


@pytest.mark.parametrize(
    "sizes, message",
    [
        ((1, 8, 1), "config.mesh.fsdp=8 must divide config.model.hidden_size=36"),
        ((1, 1, 4), "tensor=4 must divide config.model.num_attention_heads=6"),
    ],
)
def test_parameters_that_do_not_divide(sizes, message):
    with pytest.raises(ConfigError, match=message):
        mesh_fit.check_model(CONFIG.model, use_mesh(*sizes))


def test_an_optimizer_that_does_not_divide():
    mesh = use_mesh(8, 1, 1)
    mesh_fit.check_optimizer(CONFIG.model, CONFIG.mesh, mesh)
    sharded = dataclasses.replace(CONFIG.mesh, shard_optimizer=True)
    with pytest.raises(ConfigError, match="shard_optimizer=True needs .*=8 to divide"):
        mesh_fit.check_optimizer(CONFIG.model, sharded, mesh)
