"""WNLI: classify whether a sentence with a pronoun resolved follows from the original.

Devlin et al. 2019 do not report it in table 1: sentences of its dev set occur in the
training set with the opposite label, so always predicting the majority class scores
better.
"""

import ml_collections

from configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:glue/wnli:train"
    config.data.dev = ("tfds:glue/wnli:validation",)
    config.data.test = ("tfds:glue/wnli:test",)
    config.task = recipe.text_task(
        "classification", ("sentence1", "sentence2"), ("not_entailment", "entailment")
    )
    config.task.glue = ("wnli",)
    config.task.index = "idx"
    config.metric = "accuracy"  # GLUE's metric
    return config
