"""CoLA: is a sentence good English?

Devlin et al. 2019, table 1, has BERT-base at Matthews 52.1, GLUE's test set.

From GLUE's own files, which have no header; its test set has one and other columns, so
it is not read in the same call:

    --config.data.train=tsv:CoLA/train.tsv --config.data.dev="('tsv:CoLA/dev.tsv',)"
    --config.data.header="('source', 'label', 'star', 'sentence')"
    --config.data.test="()" --config.task.glue="()"
"""

import ml_collections

from configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:glue/cola:train"
    config.data.dev = ("tfds:glue/cola:validation",)
    config.data.test = ("tfds:glue/cola:test",)
    config.task = recipe.text_task(
        "classification", ("sentence",), ("unacceptable", "acceptable")
    )
    config.task.glue = ("cola",)
    config.task.index = "idx"
    config.metric = "matthews"  # what GLUE takes
    return config
