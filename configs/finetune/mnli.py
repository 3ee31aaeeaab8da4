"""MNLI: classify whether a sentence follows from another, contradicts it, or neither.

Devlin et al. 2019, table 1, reports accuracy 84.6 (matched) and 83.4 (mismatched) for
BERT-base on GLUE's test sets.

To use GLUE's own files:

    --config.data.train=tsv:MNLI/train.tsv
    --config.data.dev="('tsv:MNLI/dev_matched.tsv', 'tsv:MNLI/dev_mismatched.tsv')"
    --config.data.test="('tsv:MNLI/test_matched.tsv', 'tsv:MNLI/test_mismatched.tsv')"
    --config.task.text="('sentence1', 'sentence2')" --config.task.label=gold_label
    --config.task.index=index
"""

import ml_collections

from configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:glue/mnli:train"
    config.data.dev = (
        "tfds:glue/mnli:validation_matched",
        "tfds:glue/mnli:validation_mismatched",
    )
    config.data.test = ("tfds:glue/mnli:test_matched", "tfds:glue/mnli:test_mismatched")
    config.task = recipe.text_task(
        "classification",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
    )
    config.task.glue = ("mnli_matched", "mnli_mismatched")
    config.task.index = "idx"
    config.metric = "accuracy"  # GLUE's metric
    return config
