"""Tests of listing the variables of a TF1 checkpoint in a subprocess."""

import numpy as np
import pytest

from bert_jax.interop import tf1_variables
from bert_jax.lazy_tensorflow import tf


@pytest.mark.slow
def test_list_variables_from_another_directory(tmp_path, monkeypatch):
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "model.ckpt"),
        tensor_names=["a/b", "c"],
        shape_and_slices=["", ""],
        tensors=[np.ones((3, 2), np.float32), np.int64(7)],
    )
    monkeypatch.chdir(tmp_path)
    found = tf1_variables.list_variables("model.ckpt")
    assert found == {"a/b": ((3, 2), "float32"), "c": ((), "int64")}


@pytest.mark.slow
def test_unreadable_checkpoint_is_an_error(tmp_path):
    with pytest.raises(tf1_variables.UnreadableError, match="model.ckpt"):
        tf1_variables.list_variables(str(tmp_path / "model.ckpt"))
