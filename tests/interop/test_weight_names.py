"""Tests of the table of parameter names."""

import jax
import numpy as np
import pytest

from bert_jax.interop import weight_names
from bert_jax.model import bert
from tests.conftest import make_config


def test_every_parameter_has_one_name_and_kernels_are_transposed():
    config = make_config()
    _, params = bert.build(config.model, 97, jax.random.key(0))
    tensors = weight_names.rename(params, weight_names.HUGGINGFACE)
    assert len(tensors) == len(jax.tree.leaves(params))
    kernel = params["bert"]["layers"][1]["intermediate"]["kernel"][...]
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    np.testing.assert_array_equal(tensors[name], np.asarray(kernel).T)
    assert tensors["bert.embeddings.word_embeddings.weight"].shape == (97, 32)
    assert all(array.dtype == np.float32 for array in tensors.values())


def test_unknown_parameter_is_an_error():
    with pytest.raises(KeyError):
        weight_names.HUGGINGFACE.name("bert.layers.0.adapter.kernel")
