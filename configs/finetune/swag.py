"""SWAG: which of four endings goes on with a sentence?

The files are those of github.com/rowanz/swagaf. Devlin et al. 2019, table 4, has
BERT-base at 81.6 on the dev set.
"""

import ml_collections

from configs.finetune import recipe


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
    config.recipe.global_batch_size = 16  # section 4.4, as are 2e-5 and 3 epochs
    config.metric = "accuracy"
    return config
