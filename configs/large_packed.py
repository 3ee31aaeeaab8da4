"""BERT-large with several sentence pairs in each row of 512 tokens.

    python -m bert_jax.prepare --config=configs/large_packed.py
    python -m bert_jax.train --config=configs/large_packed.py --workdir=DIR

A pair of 512 tokens of Wikipedia is half padding; packed, a row holds about two pairs.
So the second phase sees in half the steps the pairs that it sees in configs/large.py,
from which nothing else differs. The manifest of a corpus says under padding_efficiency
what packing gains on it.
"""

import ml_collections

from configs import large


def get_config() -> ml_collections.ConfigDict:
    config = large.get_config()
    packed = config.phases[1]
    packed.max_sequences_per_row = 8
    packed.num_steps = 50_000  # half of the published 100,000
    return config
