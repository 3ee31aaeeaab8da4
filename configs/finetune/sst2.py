"""SST-2: classify the sentiment of sentences from film reviews.

Devlin et al. 2019, table 1, reports accuracy 93.5 for BERT-base on GLUE's test set.

To use GLUE's own files:

    --config.data.train=tsv:SST-2/train.tsv --config.data.dev="('tsv:SST-2/dev.tsv',)"
    --config.data.test="('tsv:SST-2/test.tsv',)" --config.task.index=index
"""

import ml_collections

from configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:glue/sst2:train"
    config.data.dev = ("tfds:glue/sst2:validation",)
    config.data.test = ("tfds:glue/sst2:test",)
    config.task = recipe.text_task(
        "classification", ("sentence",), ("negative", "positive")
    )
    config.task.glue = ("sst2",)
    config.task.index = "idx"
    config.metric = "accuracy"  # GLUE's metric
    return config
