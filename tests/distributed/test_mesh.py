"""Tests of the divisibility checks and of the sizes that their errors suggest."""

import dataclasses

import pytest

from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from tests.conftest import make_config, use_mesh

CONFIG = make_config(model__hidden_size=36, model__num_attention_heads=6)


def suggested(error: ConfigError) -> list[int]:
    return [int(size) for size in str(error).split("try ")[1].split(" or ")]


@pytest.mark.parametrize("data", [-1, 4])
@pytest.mark.parametrize(
    ("size", "accumulation_steps", "num_streams"),
    [(64, 3, 1), (64, 3, 2), (16, 1, 5), (64, 3, 5), (3, 4, 1)],
)
def test_suggested_sizes_are_accepted(data, size, accumulation_steps, num_streams):
    mesh = use_mesh(4, 2, 1)

    def check(size):
        config = make_config(
            accumulation_steps=accumulation_steps,
            data__num_shards=num_streams,
            data__num_streams=num_streams,
            phase={"global_batch_size": size},
            mesh__data=data,
            mesh__fsdp=2,
        )
        mesh_lib.check(config, mesh)

    with pytest.raises(ConfigError, match="global_batch_size") as refused:
        check(size)
    if data == -1 and "mesh.data" not in str(refused.value):
        # The config alone does not give the number of devices, so its suggestion may be
        # rejected once more, when the mesh is known.
        first = suggested(refused.value)[-1]
        with pytest.raises(ConfigError, match="mesh.data") as refused:
            check(first)
    if num_streams == 5 and accumulation_steps == 3 and data == -1:
        assert "(and of data.num_streams=5)" in str(refused.value)
    for fitting in suggested(refused.value):
        check(fitting)


@pytest.mark.parametrize(
    "sizes, message",
    [
        ((1, 8, 1), "config.mesh.fsdp=8 must divide config.model.hidden_size=36"),
        ((1, 1, 4), "tensor=4 must divide config.model.num_attention_heads=6"),
    ],
)
def test_parameters_that_do_not_divide_over_the_mesh(sizes, message):
    with pytest.raises(ConfigError, match=message):
        mesh_lib.check_model(CONFIG.model, use_mesh(*sizes))


def test_moments_that_do_not_divide_over_the_mesh():
    mesh = use_mesh(8, 1, 1)
    mesh_lib.check_optimizer(CONFIG.model, CONFIG.mesh, mesh)
    sharded = dataclasses.replace(CONFIG.mesh, shard_optimizer=True)
    with pytest.raises(ConfigError, match="shard_optimizer=True needs .*=8 to divide"):
        mesh_lib.check_optimizer(CONFIG.model, sharded, mesh)
