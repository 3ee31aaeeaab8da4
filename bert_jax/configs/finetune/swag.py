"""SWAG: choose the most plausible of four continuations of a sentence.

Uses the files of github.com/rowanz/swagaf. Devlin et al. 2019, table 4, reports
accuracy 81.6 for BERT-base on the dev set.
"""

import ml_collections

from bert_jax.configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "csv:swag/train.csv"
    config.data.dev = ("csv:swag/val.csv",)
    config.data.test = ()
    config.task = ml_collections.ConfigDict()
    config.task.kind = "multiple_choice"
    config.task.text = ("sent1", "sent2")
    config.task.choices = ("ending0", "ending1", "ending2", "ending3")
    config.task.label = "label"
    config.recipe.global_batch_size = 16  # section 4.4, with 2e-5 and 3 epochs
    config.metric = "accuracy"
    return config
