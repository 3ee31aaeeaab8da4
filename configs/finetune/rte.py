"""RTE: classify whether a sentence follows from another.

Devlin et al. 2019, table 1, reports accuracy 66.4 for BERT-base on GLUE's test set.
"""

import ml_collections

from configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:glue/rte:train"
    config.data.dev = ("tfds:glue/rte:validation",)
    config.data.test = ("tfds:glue/rte:test",)
    config.task = recipe.text_task(
        "classification", ("sentence1", "sentence2"), ("entailment", "not_entailment")
    )
    config.task.glue = ("rte",)
    config.task.index = "idx"
    config.metric = "accuracy"  # GLUE's metric
    return config
