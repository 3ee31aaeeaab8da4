"""WNUT 2017: tag rare and emerging names in posts and comments.

Uses the files of github.com/leondz/emerging_entities_17. The numbers are those of
configs/finetune/conll.py and were not tuned for this task.
"""

import ml_collections

from bert_jax.configs.finetune import conll


def get_config() -> ml_collections.ConfigDict:
    config = conll.get_config()
    config.data.train = "conll:wnut17/wnut17train.conll"
    config.data.dev = ("conll:wnut17/emerging.dev.conll",)
    config.data.test = ()
    return config
