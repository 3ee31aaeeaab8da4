"""Variables are listed by a process of its own."""

import numpy as np
import pytest

from bert_jax.interop import tf1_variables
from bert_jax.lazy_tensorflow import tf


def test_shapes_and_dtypes_whatever_the_directory(tmp_path, monkeypatch):
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "model.ckpt"),
        tensor_names=["a/b", "c"],
        shape_and_slices=["", ""],
        tensors=[np.ones((3, 2), np.float32), np.int64(7)],
    )
    monkeypatch.chdir(tmp_path)
    found = tf1_variables.list_variables("model.ckpt")
    assert found == {"a/b": ((3, 2), "float32"), "c": ((), "int64")}


def test_what_cannot_be_read_says_why(tmp_path):
    with pytest.raises(tf1_variables.UnreadableError, match="model.ckpt"):
        tf1_variables.list_variables(str(tmp_path / "model.ckpt"))
