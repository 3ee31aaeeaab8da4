"""Tests of bert_jax.training.compilation."""

import dataclasses
from concurrent import futures

import jax
import numpy as np
import pytest

from bert_jax.checkpoint import workdir
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus import corpus
from bert_jax.distributed import sharding
from bert_jax.training import compilation
from bert_jax.training import step as step_lib
from bert_jax.training.compilation import CompiledSteps
from tests import corpora
from tests.conftest import make_batch, two_phases, use_mesh


def make_step(config):
    """Returns a function that initializes the state, and the jitted step."""
    graphdef, init = step_lib.init_state(config)
    step = step_lib.make_train_step(config, graphdef)
    return init, compilation.jit(step)


@pytest.mark.slow
def test_each_phase_is_compiled_while_the_one_before_it_runs():
    config = two_phases(sequence_length=32, global_batch_size=16, max_predictions=6)
    mesh = use_mesh(2, 2, 2)
    init, train_step = make_step(config)
    like = sharding.on_mesh(jax.eval_shape(init), mesh)
    compiled = CompiledSteps(config, train_step, like, mesh)
    assert compiled.start(0) is compiled.start(0)
    first = compiled.get(0)
    assert set(compiled._compiled) == {0, 1}
    batch = sharding.place_batch(make_batch(config), mesh)
    found, expected = first(init(), batch)[0], train_step(init(), batch)[0]
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.sharding == b.sharding
    second = compiled.get(1)
    batch = make_batch(dataclasses.replace(config, phases=config.phases[1:]))
    state, _ = second(found, sharding.place_batch(batch, mesh))
    assert int(state.step) == 2


def test_an_error_of_the_next_phase_ends_the_run_in_this_one(monkeypatch):
    def compile_phase(config, step, state, mesh, phase_index):
        if phase_index:
            raise ImportError("a kernel")
        return "compiled"

    monkeypatch.setattr(compilation, "compile_phase", compile_phase)
    compiled = CompiledSteps(two_phases(), None, {}, use_mesh(1, 1, 1))
    assert compiled.start(0).result() == "compiled"
    futures.wait([compiled.start(1)])
    with pytest.raises(ImportError, match="a kernel"):
        compiled.get(0)


def test_batch_shapes_equal_those_of_the_pipeline(trained):
    config = workdir.read_config(str(trained / "run"))
    mesh = use_mesh(1, 1, 1)
    batch = next(corpora.batches(corpus.read(config), config))
    abstract = sharding.abstract_batch(pipeline.batch_shapes(config.phases[0]), mesh)
    placed = sharding.place_batch(batch, mesh)
    assert abstract.keys() == placed.keys()
    for name, array in placed.items():
        assert abstract[name].shape == array.shape, name
        assert abstract[name].dtype == array.dtype, name
        assert abstract[name].sharding == array.sharding, name


def test_xla_options_of_a_gpu_are_those_that_xla_flags_does_not_set(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert not compilation.compiler_options()  # on a CPU
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    assert compilation.compiler_options() == {"xla_gpu_enable_triton_gemm": False}
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    assert not compilation.compiler_options()
