"""BERT-large with several sentence pairs in each row of 512 tokens.

    python -m bert_jax.prepare --config=configs/large_packed.py
    python -m bert_jax.train --config=configs/large_packed.py --workdir=DIR

On Wikipedia, rows of 512 tokens with one pair are half padding; packed rows hold about
two pairs. The second phase therefore sees as many pairs as in configs/large.py in half
the steps; nothing else differs.
"""

import ml_collections

from bert_jax.configs import large


def get_config() -> ml_collections.ConfigDict:
    config = large.get_config()
    packed = config.phases[1]
    packed.max_sequences_per_row = 8
    packed.num_steps = 50_000  # half of the published 100,000
    return config
