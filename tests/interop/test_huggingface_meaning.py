"""Test that our defaults for config.json are those of transformers."""

import pytest

from bert_jax.interop.huggingface_config import DEFAULTS

# transformers 5 has removed this key and all other values of it.
GONE = {"position_embedding_type"}


def test_defaults_equal_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig()
    found = {key: getattr(config, key) for key in DEFAULTS.keys() - GONE}
    assert found == {key: DEFAULTS[key] for key in found}
