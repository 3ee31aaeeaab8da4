"""Tests of the table of parameter names."""

import jax
import numpy as np
import pytest

from bert_jax.interop import weight_names
from bert_jax.model import bert, parameters
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


@pytest.mark.parametrize("naming", [weight_names.HUGGINGFACE, weight_names.GOOGLE])
def test_names_of_tensors_are_mapped_back_and_others_are_not(naming):
    _, params = bert.build(make_config().model, 97, jax.random.key(0))
    tensors = weight_names.rename(params, naming)
    found = naming.our_names([*tensors, "bert.encoder.layer.0.adapter.weight"])
    assert found.keys() == parameters.by_name(params).keys()
    assert {*found.values()} == tensors.keys()
