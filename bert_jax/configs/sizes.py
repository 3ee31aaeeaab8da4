"""BERT-base's recipe for other model sizes, such as the smaller models of Google.

    python -m bert_jax.train --config=configs/sizes.py:4,256 --workdir=DIR

The argument after the colon is LAYERS,HIDDEN or one of the released names: tiny, mini,
small, medium, base. Heads have size 64 and the feed-forward size is four times the
hidden size, as in all released models (Turc et al. 2019; google-research/bert README,
"Smaller BERT Models").
"""

import re

import ml_collections

from bert_jax.configs import base
from bert_jax.errors import ConfigError

HEAD_SIZE = 64
NAMES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    num_layers, hidden_size = NAMES[size] if size in NAMES else _parse(size)
    config = base.get_config()
    config.model.num_hidden_layers = num_layers
    config.model.hidden_size = hidden_size
    config.model.num_attention_heads = hidden_size // HEAD_SIZE
    config.model.intermediate_size = 4 * hidden_size
    return config


def _parse(size: str) -> tuple[int, int]:
    match = re.fullmatch("([1-9][0-9]*),([1-9][0-9]*)", size)
    if not match or int(match[2]) % HEAD_SIZE:
        raise ConfigError(
            f"{size!r} is not a valid model size; give LAYERS,HIDDEN, as in 4,256, with"
            f" a multiple of {HEAD_SIZE}, the size of a head, or one of"
            f" {', '.join(NAMES)}"
        )
    return int(match[1]), int(match[2])
