"""MRPC: classify whether two sentences are paraphrases.

Devlin et al. 2019, table 1, reports F1 88.9 for BERT-base on GLUE's test set.
"""

import ml_collections

from configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:glue/mrpc:train"
    config.data.dev = ("tfds:glue/mrpc:validation",)
    config.data.test = ("tfds:glue/mrpc:test",)
    config.task = recipe.text_task(
        "classification", ("sentence1", "sentence2"), ("not_equivalent", "equivalent")
    )
    config.task.glue = ("mrpc",)
    config.task.index = "idx"
    config.metric = "f1"  # GLUE's metric
    return config
