"""CoNLL-2003: tag names of persons, locations, organizations and other entities.

Devlin et al. 2019, table 7, reports F1 96.4 on the dev set and 92.4 on the test set for
BERT-base, cased and with document context around each sentence; this config has no
document context. To use CoNLL's own files:

    --config.data.train=conll:eng.train --config.data.dev="('conll:eng.testa',)"
    --config.data.test="('conll:eng.testb',)"
"""

import ml_collections

from bert_jax.configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:conll2003:train"
    config.data.dev = ("tfds:conll2003:dev",)
    config.data.test = ("tfds:conll2003:test",)
    config.task = ml_collections.ConfigDict()
    config.task.kind = "tagging"
    config.task.words = "tokens"
    config.task.tags = "ner"
    config.task.labels = ()
    config.recipe.learning_rate = 5e-5  # appendix A.3, with batches of 32 and 3 epochs
    config.recipe.learning_rates = (5e-5, 3e-5, 2e-5)  # appendix A.3
    config.metric = "f1"
    return config
