"""Tests of int8 weights: their error and their memory."""

import jax
import numpy as np
import pytest

from bert_jax.loading import model as model_lib
from bert_jax.model import int8
from bert_jax.model.parameters import path_name
from tests.conftest import use_mesh
from tests.finetuning import tuned


def quantized(model):
    return model._replace(params=int8.quantize(model.params))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tuned.write(path)
    return path


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)])
def test_quantization_error_is_at_most_half_a_step(directory, mesh):
    use_mesh(*mesh)
    model = model_lib.place(tuned.read(directory))
    found = jax.jit(int8.dequantize)(quantized(model).params)
    leaves, _ = jax.tree_util.tree_flatten_with_path(model.params)
    for (path, x), y in zip(leaves, jax.tree.leaves(found), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert y.dtype == np.float32
        if x.ndim < 2:
            np.testing.assert_array_equal(x, y)
            continue
        axis = 0 if path_name(path).endswith("kernel") else 1
        step = np.abs(x).max(axis=axis, keepdims=True) / 127
        assert (np.abs(x - y) <= 0.51 * step).all(), path_name(path)
        assert np.abs(x - y).max() > 0


def test_int8_weights_take_a_quarter_of_the_memory(directory):
    use_mesh(1, 1, 1)
    model = model_lib.place(tuned.read(directory))
    small = quantized(model)
    vectors = [x for x in jax.tree.leaves(model.params) if x.ndim < 2]
    matrices = [x for x in jax.tree.leaves(model.params) if x.ndim == 2]
    rest = sum(4 * x.size for x in vectors)
    numbers = sum(x.size for x in matrices)
    most_scales = sum(4 * max(x.shape) for x in matrices)
    of_params = sum(x.nbytes for x in jax.tree.leaves(small.params))
    assert numbers < of_params - rest <= numbers + most_scales
