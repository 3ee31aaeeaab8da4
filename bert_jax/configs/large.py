"""BERT-large as published: 24 layers, hidden size 1024, 336 million parameters.

    python -m bert_jax.prepare --config=configs/large.py
    python -m bert_jax.train --config=configs/large.py --workdir=DIR

Everything except the model's size is that of BERT-base; see configs/base.py for the
sources.
"""

import ml_collections

from bert_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
    config = base.get_config()
    config.model.hidden_size = 1024  # this and below: the released bert_config.json
    config.model.num_hidden_layers = 24
    config.model.num_attention_heads = 16
    config.model.intermediate_size = 4096
    return config
