"""STS-B: predict how similar the meaning of two sentences is, from 0 to 5.

Devlin et al. 2019, table 1, reports Spearman correlation 85.8 for BERT-base on GLUE's
test set.

To use GLUE's own files:

    --config.data.train=tsv:STS-B/train.tsv --config.data.dev="('tsv:STS-B/dev.tsv',)"
    --config.data.test="('tsv:STS-B/test.tsv',)" --config.task.index=index
    --config.task.label=score
"""

import ml_collections

from configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:glue/stsb:train"
    config.data.dev = ("tfds:glue/stsb:validation",)
    config.data.test = ("tfds:glue/stsb:test",)
    config.task = recipe.text_task("regression", ("sentence1", "sentence2"), ("score",))
    config.task.glue = ("stsb",)
    config.task.index = "idx"
    config.metric = "spearman"  # GLUE's metric
    return config
