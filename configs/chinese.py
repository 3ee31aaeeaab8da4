"""BERT-base for Chinese, simplified and traditional: the released model's sizes.

    python -m bert_jax.train --config=configs/chinese.py --workdir=DIR
        --config.tokenizer.vocab_file=vocab.txt

with the vocab.txt of Google's bert-base-chinese: a WordPiece trained here has room for
1,000 characters only. Sizes from google-research/bert README and the released
bert_config.json; all else is configs/base.py.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
    config = base.get_config()
    config.data.sources = ("tfds:wikipedia/20230601.zh#text",)
    config.data.corpus_dir = "corpora/wikipedia_zh"
    config.data.num_shards = 128  # a smaller text than base's
    config.tokenizer.vocab_file = "vocab.txt"
    config.tokenizer.vocab_size = 21128  # the released Chinese vocabulary
    config.tokenizer.lowercase = True  # do_lower_case; drops accents of Latin letters
    return config
