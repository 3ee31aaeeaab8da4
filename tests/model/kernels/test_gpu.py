"""BERT with the kernels for GPUs, emulated on the CPU, and as compiled for an H100."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice

from bert_jax.data.batches import pipeline
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.model import attention, bert
from bert_jax.model.dropout import DropoutKey, row_indices
from bert_jax.model.kernels import gelu_gpu, gpu, norm_gpu
from bert_jax.training import losses
from bert_jax.training import step as step_lib
from tests.conftest import make_batch, make_config, slow, use_mesh

H100 = "NVIDIA H100 80GB HBM3"
BFLOAT16 = jnp.dtype(jnp.bfloat16)


def config_of_kernels(rate=0.0, length=64):
    """Returns a small config for whose first layer all kernels compute."""
    return make_config(
        model__hidden_size=128,
        model__num_attention_heads=2,
        model__intermediate_size=512,
        model__max_position_embeddings=length,
        model__hidden_dropout_prob=rate,
        model__attention_probs_dropout_prob=rate,
        model__hidden_act="gelu_new",
        phase={"sequence_length": length, "global_batch_size": 4, "max_predictions": 8},
    )


@pytest.fixture
def emulated(monkeypatch):
    """Runs the operations and the kernels that a GPU would, on the CPU."""
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    monkeypatch.setattr(sharding, "device_kind", lambda: H100)
    for module, name in (
        (attention, "Options"),
        (norm_gpu, "Options"),
        (gelu_gpu, "add_and_gelu"),
    ):
        function = functools.partial(getattr(module, name), interpret=True)
        monkeypatch.setattr(module, name, function)


def loss_and_gradients(config, mesh_shape, dtype, seed=None, remat="none"):
    mesh = use_mesh(*mesh_shape)
    key = None
    if seed is not None:
        rows = row_indices(config.phases[0].global_batch_size)
        key = DropoutKey(jax.random.key(seed), rows)
    graphdef, params = bert.build(
        config.model, config.tokenizer.vocab_size, jax.random.key(0)
    )
    batch = sharding.place_batch(make_batch(config), mesh)

    def compute(params, batch):
        sums = losses.loss_sums(
            graphdef, params, batch, True, dropout_key=key, dtype=dtype, remat=remat
        )
        return sums["masked_lm_loss"] + sums["next_sentence_loss"]

    loss, gradients = jax.jit(jax.value_and_grad(compute))(params, batch)
    leaves = [np.asarray(x, np.float32).ravel() for x in jax.tree.leaves(gradients)]
    return float(loss), np.concatenate(leaves)


@pytest.mark.slow
def test_gradients_are_as_precise_as_without_the_kernels(request):
    config = config_of_kernels()
    exact_loss, exact = loss_and_gradients(config, (1, 1, 1), jnp.dtype("float32"))
    _, plain = loss_and_gradients(config, (1, 1, 1), BFLOAT16)
    request.getfixturevalue("emulated")
    loss, found = loss_and_gradients(config, (1, 1, 1), BFLOAT16)
    assert not np.array_equal(found, plain)
    assert abs(loss - exact_loss) < 1e-3 * exact_loss
    assert np.linalg.norm(found - exact) < 1.5 * np.linalg.norm(plain - exact)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh_shape", "remat"), [((1, 2, 2), "none"), ((1, 1, 1), "full")]
)
def test_gradients_are_the_same_on_a_mesh_and_with_remat(emulated, mesh_shape, remat):
    """With the tensor axis, projections are separate products."""
    config = config_of_kernels(0.1)
    expected_loss, expected = loss_and_gradients(config, (1, 1, 1), BFLOAT16, seed=3)
    loss, found = loss_and_gradients(config, mesh_shape, BFLOAT16, 3, remat)
    assert abs(loss - expected_loss) < 1e-3 * expected_loss
    assert np.linalg.norm(found - expected) < 0.01 * np.linalg.norm(expected)


def lowered_for_h100(config) -> str:
    """Returns the train step as lowered for CUDA, without a GPU."""
    device = AbstractDevice(device_kind=H100, num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh(
        (1, 1, 1),
        mesh_lib.AXES,
        axis_types=(jax.sharding.AxisType.Explicit,) * 3,
        abstract_device=device,
    )
    with jax.sharding.use_abstract_mesh(mesh):
        graphdef, init = step_lib.init_state(config)
        state = sharding.on_mesh(jax.eval_shape(init), mesh)
        batch = sharding.abstract_batch(pipeline.batch_shapes(config.phases[0]), mesh)
        step = jax.jit(step_lib.make_train_step(config, graphdef))
        lowered = step.trace(state, batch).lower(lowering_platforms=("cuda",))
    return lowered.as_text()


@pytest.mark.parametrize("length", [64, slow(256)])
def test_train_step_for_an_h100_has_seven_kernels_in_each_layer(length):
    """One of attention and two of norms each way, and one of the GELU.

    The last layer has other lengths. In rows of 256 tokens, a head has two blocks of
    keys.
    """
    config = config_of_kernels(0.1, length)
    num_layers = config.model.num_hidden_layers
    text = lowered_for_h100(config)
    assert text.count("__gpu$xla.gpu.triton") == 7 * (num_layers - 1)


def test_a_jax_without_the_backend_lowers_the_step_without_kernels(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    uncached = functools.cache(gpu._has_backend.__wrapped__)
    monkeypatch.setattr(gpu, "_has_backend", uncached)
    assert "__gpu$xla.gpu.triton" not in lowered_for_h100(config_of_kernels())
    assert capsys.readouterr().err.count("requirements.txt has a JAX with it") == 1
