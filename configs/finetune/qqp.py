"""QQP: classify whether two questions have the same meaning.

Devlin et al. 2019, table 1, reports F1 71.2 for BERT-base on GLUE's test set.

To use GLUE's own files:

    --config.data.train=tsv:QQP/train.tsv --config.data.dev="('tsv:QQP/dev.tsv',)"
    --config.data.test="('tsv:QQP/test.tsv',)" --config.task.index=id
    --config.task.label=is_duplicate
"""

import ml_collections

from configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:glue/qqp:train"
    config.data.dev = ("tfds:glue/qqp:validation",)
    config.data.test = ("tfds:glue/qqp:test",)
    config.task = recipe.text_task(
        "classification", ("question1", "question2"), ("not_duplicate", "duplicate")
    )
    config.task.glue = ("qqp",)
    config.task.index = "idx"
    config.metric = "f1"  # GLUE's metric
    return config
