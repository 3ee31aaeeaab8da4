"""QNLI: does a sentence answer a question?

Devlin et al. 2019, table 1, has BERT-base at 90.5, GLUE's test set.
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
    config.metric = "accuracy"  # what GLUE takes
    return config
