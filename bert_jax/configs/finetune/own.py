"""Template for your own texts or pairs with a class, a score or several labels.

docs/fine_tuning.md describes the files and the keys to set.
"""

import ml_collections

from bert_jax.configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "csv:train.csv"
    config.data.dev = ("csv:dev.csv",)
    config.data.test = ()
    config.task = recipe.text_task("classification", ("text",), ())
    config.metric = "accuracy"
    return config
