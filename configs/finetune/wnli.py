"""WNLI: does a sentence with a pronoun replaced follow from the one with it?

Devlin et al. 2019 left it out of table 1: its dev set's sentences are in the training
set with the other label, and what guesses the commoner one does better.
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
    config.metric = "accuracy"  # what GLUE takes
    return config
