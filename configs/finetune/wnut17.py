"""WNUT 2017: rare and emerging names in posts and comments.

The files are those of github.com/leondz/emerging_entities_17. Numbers as in conll.py;
they were not tuned for it.
"""

import ml_collections

from configs.finetune import conll


def get_config() -> ml_collections.ConfigDict:
    config = conll.get_config()
    config.data.train = "conll:wnut17/wnut17train.conll"
    config.data.dev = ("conll:wnut17/emerging.dev.conll",)
    config.data.test = ()
    return config
