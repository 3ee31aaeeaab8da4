"""What a config.json leaves out means what transformers makes of it."""

import pytest

from bert_jax.interop.huggingface_config import MEANT

# transformers 5 has no other kind any more, and no key for it.
GONE = {"position_embedding_type"}


def test_silence_means_what_transformers_takes_it_for():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig()
    found = {key: getattr(config, key) for key in MEANT.keys() - GONE}
    assert found == {key: MEANT[key] for key in found}
