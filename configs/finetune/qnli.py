"""QNLI: classify whether a sentence answers a question.

Devlin et al. 2019, table 1, reports accuracy 90.5 for BERT-base on GLUE's test set.
"""

import ml_collections

from configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:glue/qnli:train"
    config.data.dev = ("tfds:glue/qnli:validation",)
    config.data.test = ("tfds:glue/qnli:test",)
    config.task = recipe.text_task(
        "classification", ("question", "sentence"), ("entailment", "not_entailment")
    )
    config.task.glue = ("qnli",)
    config.task.index = "idx"
    config.metric = "accuracy"  # GLUE's metric
    return config
