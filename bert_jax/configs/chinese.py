"""BERT-base for simplified and traditional Chinese, with the released model's sizes.

    python -m bert_jax.train --config=configs/chinese.py --workdir=DIR
        --config.tokenizer.vocab_file=vocab.txt

Use the vocab.txt of Google's bert-base-chinese, which has nearly all characters. Sizes
are from the google-research/bert README and the released bert_config.json; everything
else is that of configs/base.py.
"""

import ml_collections

from bert_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
    config = base.get_config()
    config.data.sources = ("tfds:wikipedia/20230601.zh#text",)
    config.data.corpus_dir = "corpora/wikipedia_zh"
    config.data.num_shards = 128  # fewer than base, because the corpus is smaller
    config.tokenizer.vocab_file = "vocab.txt"
    config.tokenizer.vocab_size = 21128  # the released Chinese vocabulary
    config.tokenizer.lowercase = True  # do_lower_case; strips accents of Latin letters
    return config
