"""CoLA: classify whether a sentence is grammatically acceptable English.

Devlin et al. 2019, table 1, reports Matthews correlation 52.1 for BERT-base on GLUE's
test set.

To use GLUE's own files, whose training and dev sets have no header, give the flags
below. Its test set has a header and different columns, so it cannot be read in the same
call.

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
    config.metric = "matthews"  # GLUE's metric
    return config
